"""The look of all figures, and how they are saved."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sampleforge.config import ConfigError
from sampleforge.runtime.files import write_atomically

WIDTH = 7.2
"""Width in inches: that of a page with two columns, or of a slide."""
DPI = 220
"""Pixels per inch of pictures."""
INK, GREY, PALE = "#111111", "#767676", "#b9b9b9"
GRID = "#e6e6e6"
SMALL, TINY = 7.5, 6.5
"""Sizes of text in points."""
STYLE: Any = {
    "font.size": SMALL,
    "axes.titlesize": 8.0,
    "axes.labelsize": SMALL,
    "figure.titlesize": 9.0,
    "legend.fontsize": SMALL,
    "xtick.labelsize": TINY,
    "ytick.labelsize": TINY,
    "axes.linewidth": 0.6,
    "axes.edgecolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "pdf.fonttype": 42,  # text stays text in papers
    "svg.fonttype": "none",
}


MISSING = 'plots need matplotlib, which is not installed: pip install "sampleforge[plot]"'


def save_figure(draw: Callable[[Any], Any], out: Path) -> None:
    """Save a figure into the file ``out``, whose suffix is the format. ``draw`` is called with
    matplotlib's class of figures and returns the figure. Raises ConfigError if matplotlib is
    missing, or the file cannot be written."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ConfigError(MISSING) from error
    with mpl.rc_context(STYLE):
        figure = draw(Figure)
        _keep_dollars(figure)
        contents = io.BytesIO()
        figure.savefig(contents, dpi=DPI, format=out.suffix[1:].lower())
        try:
            write_atomically(out, contents.getvalue())
        except OSError as error:
            raise ConfigError(
                f"{out} cannot be written: {error.strerror or error}; give another --out"
            ) from error


def _keep_dollars(figure: Any) -> None:
    """Have matplotlib draw a ``$`` in a name as it is, instead of reading a formula. The numbers of
    logarithmic axes are formulas of its own."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        if "$" in text.get_text() and r"\mathdefault" not in text.get_text():
            text.set_parse_math(False)


def plain_axes(axis: Any) -> None:
    """Draw a light grid behind the lines of an axis, and no frame at its top and right."""
    axis.grid(color=GRID, linewidth=0.5)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
