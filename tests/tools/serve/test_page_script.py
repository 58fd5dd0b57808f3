"""The page's script, run by node with a document that draws nothing, against a real server."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sampleforge.tools import serve
from tests.support.served import line, of_policies, served, write_run

NODE = shutil.which("node")
SCRIPT = Path(__file__).parent / "page_in_node.js"
PAGE = Path(serve.__file__).parent
NOWHERE = "http://127.0.0.1:9/"
"""The address of a page that asks for nothing."""

pytestmark = [
    pytest.mark.multiprocess(timeout=120),
    pytest.mark.skipif(NODE is None, reason="there is no node on this machine"),
]


def in_page(url: str, body: str) -> Any:
    """What the body of an async function returns in the page at ``url``."""
    words = [str(NODE), "--max-old-space-size=256", str(SCRIPT), str(PAGE), url]
    done = subprocess.run(words, input=body, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (500.00000000000057, 500.0000000000006),
        (1e17, 1e17 + 32),
        (-1e300, -1e300 * (1 - 1e-15)),
        (3.0, 3.0),
        (0.0, 5e-324),
        (-1.7e308, 1.7e308),
    ],
)
def test_an_axis_has_few_ticks_however_narrow_it_is(low: float, high: float) -> None:
    ends = f"{low!r}, {high!r}"
    plain, of_time = in_page(NOWHERE, f"return [ticks({ends}, 5), timeTicks({ends}, 5)];")
    assert len(plain) <= 7 and len(of_time) <= 7


def test_the_ticks_of_a_usual_range_are_all_its_round_numbers() -> None:
    found = in_page(
        NOWHERE,
        "return [ticks(0, 100, 5), ticks(-0.31, 0.3, 6), ticks(500, 503.2, 4),"
        " timeTicks(0, 7200, 4), timeTicks(100, 90000 * 10, 5)];",
    )
    assert found[0] == [0, 20, 40, 60, 80, 100]
    assert found[1] == pytest.approx([-0.2, 0, 0.2])
    assert found[2] == [500, 501, 502, 503]
    assert found[3] == [0, 1800, 3600, 5400, 7200]
    assert found[4] == [259200, 518400, 777600]


@pytest.mark.parametrize(
    ("values", "log"),
    [
        ((500.00000000000057, 500.0000000000006), False),
        ((1e17, 1e17 + 32), False),
        ((1e17, 1e17 + 32), True),
        ((1e300, 1.7e308), True),
        ((1e300, 1.7e308), False),
    ],
)
@pytest.mark.parametrize("x", ["env_steps", "wall_s"])
def test_a_chart_of_values_that_hardly_differ_is_drawn(
    values: tuple[float, float], log: bool, x: str
) -> None:
    """Also over an axis that is as narrow, and zoomed until there is nothing between its ends."""
    y, options = json.dumps(values), json.dumps({"x": x, "log": log, "none": ""})
    low, high = in_page(
        NOWHERE,
        f"""const chart = new Chart(), y = {y};
        chart.show([{{ name: "a", x: [100, 200], y }}], {options});
        chart.show([{{ name: "a", x: y, y }}], {options});
        const {{ y0, y1 }} = chart.ranges();
        chart.zoom = [500.00000000000057, 500.0000000000006];
        chart.show([{{ name: "a", x: [100, 500.0000000000006, 900], y: [1, 2, 3] }}], {options});
        const {{ x0, x1 }} = chart.ranges();
        if (!(x1 - x0 > 1e-9 * x1)) throw new Error(`zoomed to ${{[x0, x1]}}`);
        return [y0, y1];""",
    )
    assert low < values[0] and (high > values[1] or log)
    assert high - low > 1e-9 * high


CHARTS = "charts.map((chart) => chart.metric)"
OWN = "view.own.map((chart) => chart.metric)"
"""The metrics of the charts of the tab of curves, and of that of one run."""
USUAL = ["return_mean", "env_steps_per_s", "loss", "entropy"]


def report(index: int, **more: float) -> str:
    return line(index, env_steps_per_s=9.0, entropy=0.5, **more)


def early(folder: Path) -> Path:
    """A run whose first report comes before its first return; the file of its reports."""
    reports = write_run(folder, 0) / "metrics.jsonl"
    reports.write_text('{"env_steps": 50, "wall_s": 1.0, "env_steps_per_s": 9.0}\n')
    return reports


def test_charts_are_added_when_the_first_return_is_reported(tmp_path: Path) -> None:
    """In both tabs. What the user did not choose is not in the address."""
    reports = early(tmp_path / "a")
    with served(tmp_path) as server:
        curves, own, count, address = in_page(
            server.url,
            f"""await poll();
            state.focus = "a"; state.tab = "run"; await updateTab();
            const first = [{CHARTS}, {OWN}];
            fs.appendFileSync({json.dumps(str(reports))}, {json.dumps(report(1) + report(2))});
            await poll(); writeAddress();
            const own = {OWN}, kept = view.own.at(-1);
            state.tab = "curves"; await poll(); writeAddress();
            if (view.own.at(-1) !== kept) throw new Error("a chart was made again");
            return [[first[0], {CHARTS}], [first[1], own],
              [$("charts").children.length, view.charts.children.length], location.hash];""",
        )
    assert curves == [["env_steps_per_s"], USUAL]
    assert own == [["env_steps_per_s"], ["return_mean", "loss", "entropy", "env_steps_per_s"]]
    assert count == [4, 4] and "metric" not in address


def test_a_chart_that_is_shown_stays_when_others_are_added(tmp_path: Path) -> None:
    """Also one that the user has show another metric in the view of one run."""
    more = {"value_loss": 1.0, "q_mean": 2.0}
    reports = early(tmp_path / "a")
    with reports.open("a") as out:
        out.write(report(1, **more).replace("return_mean", "other"))
    with served(tmp_path) as server:
        first, later = in_page(
            server.url,
            f"""state.focus = "a"; state.tab = "run"; await poll();
            const first = {OWN};
            view.own[1].choice.value = "wall_s"; view.own[1].choice.fire("change");
            fs.appendFileSync({json.dumps(str(reports))}, {json.dumps(report(2, **more))});
            await poll();
            return [first, {OWN}];""",
        )
    assert first == ["loss", "value_loss", "q_mean", "entropy"]
    assert later == ["return_mean", "loss", "wall_s", "q_mean", "entropy"]


def test_the_charts_that_the_user_chose_stay_and_are_in_the_address(tmp_path: Path) -> None:
    reports = early(tmp_path / "a")
    with served(tmp_path) as server:
        charts, address, again = in_page(
            server.url,
            f"""await poll();
            charts[0].choice.value = "wall_s"; charts[0].choice.fire("change");
            fs.appendFileSync({json.dumps(str(reports))}, {json.dumps(report(1))});
            await poll();
            const found = [{CHARTS}, location.hash];
            location.hash = "#metric=loss&metric=wall_s"; readAddress(); await poll();
            return [...found, {CHARTS}];""",
        )
    assert charts == ["wall_s"] and address.endswith("metric=wall_s")
    assert again == ["loss", "wall_s"]


def test_only_policies_have_a_line_of_their_own(tmp_path: Path) -> None:
    """Not what has a slash in its name; a fill of slots is the mean of the policies."""
    odd: dict[str, Any] = {"env_level/loss": 3.0, "env_level/ready_slots_fill": 1.0}
    own = [{"loss": 1.0, "ready_slots_fill": fill} for fill in (0.2, 0.4)]
    fills = of_policies(a=own[0], b={**own[1], "x/y": 1.0})
    write_run(tmp_path / "one", **odd)
    write_run(tmp_path / "two", **odd, **fills)
    with served(tmp_path) as server:
        one, two = in_page(
            server.url,
            """const found = [];
            for (const id of ["one", "two"]) {
              state.focus = id; state.tab = "run"; await poll();
              const names = view.own[0].choice.children.map((each) => each.value);
              found.push([view.own[0] instanceof PolicyChart, view.queues.textContent, names]);
            }
            return found;""",
        )
    assert not one[0] and "env_level/loss" in one[2] and "%" not in one[1]
    assert two[0] and {"env_level/loss", "x/y"} <= set(two[2]) and "30%" in two[1]


def test_a_run_that_has_not_reported_yet_is_selected_when_it_does(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", 0)
    with served(tmp_path) as server:
        before, after = in_page(
            server.url,
            f"""await poll();
            const before = $("selected").textContent;
            fs.appendFileSync({json.dumps(str(run / "metrics.jsonl"))}, {json.dumps(report(1))});
            await poll();
            return [before, $("selected").textContent];""",
        )
    assert (before, after) == ("0 runs shown", "1 run shown")


def test_every_curve_of_many_runs_is_drawn(tmp_path: Path) -> None:
    """They are asked for in several requests, in the same resolution."""
    for number in range(620):
        write_run(tmp_path / f"run {number:04}", 3)
    with served(tmp_path) as server:
        found = in_page(
            f"{server.url}#metric=return_mean",
            """const asked = [], ask = fetch;
            fetch = (path, options) => { asked.push(path); return ask(path, options); };
            await poll(); $("all").fire("click");
            await until(() => !charts[0].busy); await poll();
            const curves = [...charts[0].curves.values()];
            const points = curves.map((curve) => curve.stamp.split(".").pop());
            return {
              drawn: charts[0].chart.series.length, lines: $("selected").textContent,
              resolutions: new Set(points).size, link: $("link").textContent,
              most: Math.max(...asked.map((path) => path.split("run=").length - 1)),
              shown: location.hash.split("show=").length - 1,
            };""",
        )
    assert found == {
        "drawn": 620,
        "lines": "620 runs shown",
        "resolutions": 1,
        "link": "live",
        "most": 200,
        "shown": 620,
    }


def test_long_names_of_runs_fit_into_the_requests(tmp_path: Path) -> None:
    for number in range(150):
        write_run(tmp_path / ("ä" * 80) / f"{'ö' * 80} {number}", 1)
    with served(tmp_path) as server:
        drawn = in_page(
            f"{server.url}#metric=return_mean",
            """await poll(); $("all").fire("click");
            await until(() => !charts[0].busy); await poll();
            return [charts[0].chart.series.length, $("link").textContent];""",
        )
    assert drawn == [150, "live"]


def test_what_the_list_leaves_out_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        write_run(tmp_path / str(number), 1)
    monkeypatch.setattr("sampleforge.tools.serve.runs.MAX_RUNS", 3)
    monkeypatch.setattr("sampleforge.tools.serve.runs.MAX_FOLDERS", 6)
    with served(tmp_path) as server:
        said = in_page(server.url, 'await poll(); drawList(); return $("count").textContent;')
    assert said == "3 runs, 2 left out, not all folders searched"


def test_runs_are_sorted_by_the_return_that_is_shown_and_counted_while_they_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, scale, evaluated in (("a", 1.0, 500.0), ("b", 5.0, 50.0)):
        run = write_run(tmp_path / name, 20, scale=scale)
        summary = {"status": "finished", "wall_s": 100.0, "eval_return_mean": evaluated}
        (run / "summary.json").write_text(json.dumps(summary))
    monkeypatch.setattr("sampleforge.tools.serve.runs.SEARCH_S", 0.0)
    with served(tmp_path) as server:
        listed, before, after = in_page(
            server.url,
            f"""await poll();
            state.sort = "return"; drawList();
            const listed = $("runs").children.map((row) => row.textContent);
            const before = $("selected").textContent;
            fs.rmSync({json.dumps(str(tmp_path / "b"))}, {{ recursive: true }});
            const deadline = Date.now() + 20000;
            while (state.runs.size > 1 && Date.now() < deadline) await poll();
            return [listed, before, $("selected").textContent];""",
        )
    assert [("500" in row, row[0]) for row in listed] == [(True, "a"), (False, "b")]
    assert (before, after) == ("2 runs shown", "1 run shown")
