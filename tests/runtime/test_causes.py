"""What a traceback says in one line."""

from __future__ import annotations

import traceback

import pytest

from sampleforge.runtime.causes import causes


def raises() -> None:
    try:
        try:
            raise KeyError("level 7")
        except KeyError as error:
            raise ValueError("no level\nof this number") from error
    except ValueError as error:
        error.add_note("row 1: the first of 4 errors in a row")
        raise


def test_every_error_is_named_the_last_one_first_with_its_notes() -> None:
    with pytest.raises(ValueError, match="no level") as caught:
        raises()
    text = "".join(traceback.format_exception(caught.value))
    assert causes(f"actor 0 failed; its traceback:\n\n{text}") == (
        "ValueError: no level of this number row 1: the first of 4 errors in a row, "
        "caused by KeyError: 'level 7'"
    )


def test_an_error_that_was_never_raised_has_its_notes_and_one_that_says_no_more_is_left_out() -> (
    None
):
    ended = RuntimeError("the environment raised SystemExit(3)")
    ended.add_note("(maze:Maze, row 0)")
    ended.__cause__ = RuntimeError("the environment raised")
    text = "".join(traceback.format_exception(ended))
    assert causes(text) == "RuntimeError: the environment raised SystemExit(3) (maze:Maze, row 0)"


def test_an_error_without_a_message_has_the_line_that_raised_it() -> None:
    view = 4
    with pytest.raises(AssertionError) as caught:
        exec(compile("assert view % 2 == 1", "/games/maze.py", "exec"), {"view": view})
    text = "".join(traceback.format_exception(caught.value))
    assert causes(text) == "AssertionError (maze.py, line 1)"
    text = text.replace(", in <module>", ", in __init__\n    assert view % 2 == 1\n    ^^^^^^^^^^")
    assert causes(text) == "AssertionError at assert view % 2 == 1 (maze.py, line 1)"
    frozen = 'File "<frozen importlib._bootstrap>", line 241, in _call_with_frames_removed\n  File '
    text = text.replace('File "/games', f'{frozen}"/games')
    assert causes(text) == "AssertionError at assert view % 2 == 1 (maze.py, line 1)"
    caught.value.add_note("(maze:Maze, row 0)")
    text = "".join(traceback.format_exception(caught.value))
    assert causes(text) == "AssertionError (maze.py, line 1) (maze:Maze, row 0)"


def test_without_a_traceback_it_is_the_last_line() -> None:
    assert causes("Timeout!\n  File x\nE hangs (the stacks are above); raise it") == (
        "E hangs; raise it"
    )
    assert causes("it was killed") == "it was killed"
