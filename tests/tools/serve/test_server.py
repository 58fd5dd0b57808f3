"""The web page's server: it shows runs as they grow, changes nothing, and trusts nothing."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest

from sampleforge.cli import main
from sampleforge.run.folder.run_folder import RunFolder
from sampleforge.tools.serve.server import PAGE, ROUTES, Server
from tests.support.processes import StartCli
from tests.support.served import ask, ask_json, line, of_policies, served, tree_hash, write_run

HOSTILE = '<img src=x onerror="alert(1)">&"\''


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def server(root: Path) -> Iterator[Server]:
    """A server of two runs, ``a`` and ``deep/b``."""
    write_run(root / "a")
    write_run(root / "deep" / "b", scale=2.0)
    with served(root) as running:
        yield running


def curve(server: Server, run: str, have: str = "", **words: object) -> dict:
    extra = "".join(f"&{name}={value}" for name, value in words.items())
    path = f"/api/curves?metric=return_mean&run={quote(run)}&have={have}{extra}"
    return ask_json(server, path)["curves"][run]


def rows(server: Server) -> dict[str, dict]:
    return {row["id"]: row for row in ask_json(server, "/api/runs")["runs"]}


def test_runs_are_listed_at_any_depth_with_their_last_report(server: Server) -> None:
    listed = rows(server)
    assert set(listed) == {"a", "deep/b"}
    assert listed["deep/b"]["return"] == 38.0 and listed["a"]["env_steps"] == 2000
    assert (listed["a"]["env"], listed["a"]["algo"], listed["a"]["seed"]) == (
        *("CartPole-v1", "appo", "3"),
    )
    assert "loss" in ask_json(server, "/api/runs")["metrics"]


def test_status_follows_the_lock_and_the_summary(server: Server, root: Path) -> None:
    assert rows(server)["a"]["status"] == "killed" or not Path("/proc/locks").exists()
    folder = RunFolder(root / "c")
    folder.create()
    write_run(root / "d")
    (root / "c" / "config.yaml").write_bytes((root / "d" / "config.yaml").read_bytes())
    server.runs._search_at = 0.0
    assert rows(server)["c"]["status"] == "running"
    folder.write_summary({"status": "failed", "wall_s": 1.0})
    assert rows(server)["c"]["status"] == "running", "the summary of an earlier part"
    folder.close()
    assert rows(server)["c"]["status"] == "failed"
    (root / "d" / "summary.json").write_text('{"status": "finished", "wall_s": 1.0}')
    assert rows(server)["d"]["status"] != "finished", "its reports go on after the summary"


@pytest.mark.parametrize(
    ("result", "status"),
    [
        ({"members": 4, "finished": 3, "failed": 1}, "finished"),
        ({"members": 4, "finished": 0, "failed": 4}, "failed"),
        ({"members": 4, "finished": 0, "failed": 0}, "interrupted"),
        ({"members": 4, "finished": 3, "failed": 0}, "interrupted"),
        ({"best": "0"}, "killed"),
        ([], "killed"),
        (None, "killed"),
    ],
)
def test_the_status_of_a_population_of_runs_is_that_of_its_members(
    root: Path, result: object, status: str
) -> None:
    """Its result is written when the launcher is interrupted, too."""
    (root / "p").mkdir(parents=True)
    (root / "p" / "lineage.jsonl").write_text("")
    if result is not None:
        (root / "p" / "results.json").write_text(json.dumps(result))
    with served(root) as server:
        assert rows(server)["p"]["status"] == status


def test_only_folders_of_sweeps_and_populations_have_folders_without_runs(root: Path) -> None:
    """Elsewhere runs are found in folders of any name, down to the limit of depth."""
    names = ["jobs", "scratch", "tb", "published", "snapshots", "checkpoints", ".hidden"]
    for name in names:
        write_run(root / name / "a", 1)
    write_run(root / "1" / "2" / "3" / "4" / "5", 1)
    write_run(root / "1" / "2" / "3" / "4" / "six" / "6", 1)
    for folder, file in (("s", "sweep.yaml"), ("p", "population.json")):
        write_run(root / folder / "members" / "0", 1)
        write_run(root / folder / "jobs" / "0", 1)
        (root / folder / file).write_text("")
    with served(root) as server:
        found = set(rows(server))
    kept = {f"{name}/a" for name in names}
    assert found == {*kept, "1/2/3/4/5", "s/members/0", "p/members/0"}


def test_more_curves_than_one_request_may_have_are_refused_aloud(server: Server) -> None:
    words = "&run=a" * 501
    status, _, body = ask(server, f"/api/curves?metric=loss{words}")
    assert status == 400 and b"501 curves in one request; ask for 500 at a time" in body


def test_the_resolution_of_a_curve_is_that_of_all_curves_of_its_chart(root: Path) -> None:
    write_run(root / "long", 4000)
    with served(root) as server:
        while not (found := curve(server, "long", of=500))["exact"]:
            pass
        assert 60 <= len(found["x"]) <= 122


def test_curves_grow_by_what_was_appended_and_are_not_sent_again(
    server: Server, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = curve(server, "a")
    assert first["x"] == [100.0 * i for i in range(1, 21)] and first["y"][-1] == 19.0
    assert first["exact"] and curve(server, "a", first["stamp"]) == {
        "stamp": first["stamp"],
        "exact": True,
    }
    offsets: list[int] = []
    read_at = sys.modules["sampleforge.tools.serve.metrics"].read_at  # type: ignore[attr-defined]

    def spied(handle: int, offset: int, size: int) -> bytes:
        offsets.append(offset)
        return read_at(handle, offset, size)

    file = root / "a" / "metrics.jsonl"
    size = file.stat().st_size
    with file.open("a") as out:
        out.write(line(20) + line(21) + '{"env_steps": 2300, "wa')
    monkeypatch.setattr("sampleforge.tools.serve.metrics.TAIL", 64)
    monkeypatch.setattr("sampleforge.tools.serve.metrics.read_at", spied)
    second = curve(server, "a", first["stamp"])
    assert second["x"][:20] == first["x"] and second["x"][20:] == [2100.0, 2200.0]
    assert min(offsets) >= size - len(line(19)), "only the last known line, and what is new"
    with file.open("a") as out:
        out.write('ll_s": 115.0, "return_mean": 7.5}\n')
    assert curve(server, "a", second["stamp"])["y"][-1] == 7.5
    file.write_text(line(0))
    assert curve(server, "a")["x"] == [100.0], "it was replaced"


@pytest.mark.parametrize("reports", [20, 30])
def test_a_run_that_was_made_again_has_the_new_curve_alone(
    server: Server, root: Path, reports: int
) -> None:
    """Its file is not shorter than what was read, and may have the number of the one before."""
    first = curve(server, "a")
    (root / "a" / "metrics.jsonl").write_text(
        "".join(line(index, 5.0, other=1.0) for index in range(reports))
    )
    second = curve(server, "a", first["stamp"])
    assert second["y"] == [5.0 * index for index in range(reports)]
    assert "other" in ask_json(server, "/api/run?run=a")["metrics"]


def test_every_page_sees_that_a_run_was_made_again(server: Server, root: Path) -> None:
    """Also with as many bytes as before, and if another page has asked first."""
    first = curve(server, "a")
    file = root / "a" / "metrics.jsonl"
    size = file.stat().st_size
    file.write_text("".join(line(i, return_mean=19.0 - i) for i in range(20)))
    assert file.stat().st_size == size
    os.utime(file, (1.0, 1.0))  # a clock may be too coarse to tell the two apart
    for _page in range(2):
        assert curve(server, "a", first["stamp"])["y"] == [19.0 - i for i in range(20)]


def test_a_resumed_run_has_one_curve_and_other_axes(server: Server, root: Path) -> None:
    with (root / "a" / "metrics.jsonl").open("a") as out:
        for index in (10, 11):
            report = {"env_steps": 100 * (index + 1) + 5, "wall_s": 80.0 + index}
            out.write(json.dumps({**report, "return_mean": 50.0}) + "\n")
    found = curve(server, "a")
    assert found["x"] == [100.0 * i for i in range(1, 12)] + [1105.0, 1205.0]
    assert found["reports"] == 13
    assert curve(server, "a", x="wall_s")["x"][-1] == 91.0
    smooth = curve(server, "a", smooth=4)["y"]
    assert smooth[:4] == pytest.approx([0.0, 0.5, 1.0, 1.5])
    assert smooth[10] == pytest.approx(np.mean([7, 8, 9, 10]))


def test_a_long_curve_keeps_every_peak(root: Path) -> None:
    random = np.random.default_rng(0)
    values = random.normal(size=9000)
    values[[4321, 7000]] = [50.0, -60.0]
    run = write_run(root / "long", 0)
    with (run / "metrics.jsonl").open("w") as out:
        out.writelines(line(i, return_mean=float(v)) for i, v in enumerate(values))
    with served(root) as server:
        found = curve(server, "long")
        while not found["exact"]:
            found = curve(server, "long")
    assert found["reports"] == 9000 and len(found["y"]) <= 1202
    assert max(found["y"]) == 50.0 and min(found["y"]) == -60.0
    assert found["x"][0] == 100.0 and found["x"][-1] == 900_000.0
    shown = dict(zip(found["x"], found["y"], strict=True))
    assert all(shown[x] == values[int(x) // 100 - 1] for x in shown)


def test_a_file_for_which_there_is_no_time_is_sampled_first(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(root / "long", 4000)
    monkeypatch.setattr("sampleforge.tools.serve.runs.EXACT_S", -1.0)
    with served(root) as server:
        found = curve(server, "long")
        assert not found["exact"] and 150 <= len(found["x"]) <= 400
        assert found["x"][0] == 100.0 and found["x"][-1] == 400_000.0
        assert all(y == x / 100 - 1 for x, y in zip(found["x"], found["y"], strict=True))
        assert curve(server, "long", found["stamp"]) == {"stamp": found["stamp"], "exact": False}
        monkeypatch.setattr("sampleforge.tools.serve.runs.EXACT_S", 10.0)
        assert curve(server, "long", found["stamp"])["reports"] == 4000


def test_what_only_policies_have_is_their_mean(root: Path) -> None:
    write_run(root / "two", 3, **of_policies(one={"entropy": 1.0}, two={"entropy": 3.0}))
    with served(root) as server:
        found = ask_json(server, "/api/curves?metric=entropy&run=two")["curves"]["two"]
        assert found["y"] == [2.0, 2.0, 2.0]
        assert "entropy" in ask_json(server, "/api/runs")["metrics"]


def evaluated_by_turns(folder: Path, reports: int = 12) -> Path:
    """A run of two policies that are evaluated one after the other: the weights of ``one`` were
    copied 100 env steps before its report, those of ``two`` 200 before."""
    run = write_run(folder, 0)
    with (run / "metrics.jsonl").open("w") as out:
        for index in range(reports):
            own: dict[str, dict[str, float]] = {"one": {}, "two": {}}
            if index in (2, 4):
                own["one"] = {"eval_env_steps": 100.0 * index, "eval_return_mean": 10.0 * index}
            if index in (3, 5):
                own["two"] = {"eval_env_steps": 100.0 * index - 100, "eval_return_mean": 0.0}
            out.write(line(index, **of_policies(**own)))
    return run


def asked(server: Server, metric: str, run: str, x: str = "env_steps") -> dict:
    path = f"/api/curves?metric={metric}&run={run}&x={x}"
    for _ in range(2):  # the first one may find names of metrics
        found = ask_json(server, path)["curves"][run]
    return found


def test_the_evaluations_of_every_policy_are_found(root: Path) -> None:
    """Not those of the first alone, though the last reports have none."""
    evaluated_by_turns(root / "two")
    with served(root) as server:
        asked(server, "loss", "two")
        names = ask_json(server, "/api/runs")["metrics"]
        assert {"one/eval_return_mean", "two/eval_return_mean", "eval_return_mean"} <= set(names)
        assert asked(server, "two/eval_return_mean", "two")["y"] == [0.0, 0.0]


def test_evaluations_are_drawn_where_their_weights_were_copied(root: Path) -> None:
    """As in TensorBoard and `sampleforge plot`; the mean over policies is over the last evaluation
    of each."""
    evaluated_by_turns(root / "two")
    with served(root) as server:
        one = asked(server, "one/eval_return_mean", "two")
        assert (one["x"], one["y"]) == ([200.0, 400.0], [20.0, 40.0])
        assert asked(server, "one/eval_return_mean", "two", "wall_s")["x"] == [10.0, 20.0]
        mean = asked(server, "eval_return_mean", "two")
        assert (mean["x"], mean["y"]) == ([200.0, 200.0, 400.0, 400.0], [20.0, 10.0, 20.0, 20.0])


def test_a_report_of_many_policies_is_found_whatever_its_length(root: Path) -> None:
    """A report of 48 policies has more than 64 KiB; the file ends within the next one."""
    policies = {
        f"policy_{number}": {f"a_metric_with_a_long_name_{i}": 1.0 for i in range(60)}
        for number in range(48)
    }
    run = write_run(root / "many", 3, **of_policies(**policies))
    (last,) = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)[-1:]
    assert len(last) > 2 << 16
    with (run / "metrics.jsonl").open("ab") as out:
        out.write(last[:-9])
    with served(root) as server:
        row = rows(server)["many"]
        assert (row["env_steps"], row["return"]) == (300, 2.0)
        assert len(row["policies"]) == 48
        assert curve(server, "many")["y"] == [0.0, 1.0, 2.0]


def test_a_slash_in_the_name_of_a_statistic_makes_no_policy(root: Path) -> None:
    write_run(root / "level", 3, **{"env_level/score": 3.0, "env_goal/score": 1.0})
    with served(root) as server:
        listed = ask_json(server, "/api/runs")
        (row,) = (row for row in listed["runs"] if row["id"] == "level")
        assert row["policies"] == []
        assert "env_level/score" in listed["metrics"] and "score" not in listed["metrics"]
        curves = {
            name: ask_json(server, f"/api/curves?metric={name}&run=level")["curves"]["level"]["y"]
            for name in ("env_level/score", "score")
        }
        assert curves == {"env_level/score": [3.0, 3.0, 3.0], "score": []}


def test_the_log_comes_in_parts(server: Server, root: Path) -> None:
    first = ask_json(server, "/api/log?run=a")
    assert first["reset"] and first["text"].endswith("begins\n")
    with (root / "a" / "log.txt").open("a") as out:
        out.write("two\nthr")
    second = ask_json(server, f"/api/log?run=a&from={first['end']}")
    assert second["text"] == "two\n" and not second["reset"]
    (root / "a" / "log.txt").write_text("new\n")
    assert ask_json(server, f"/api/log?run=a&from={second['end']}")["text"] == "new\n"


def test_no_request_changes_anything(server: Server, root: Path) -> None:
    write_run(root / "odd" / HOSTILE.replace("/", ""))
    (root / "a" / "video.mp4").write_bytes(b"\0" * 100)
    before = tree_hash(root)
    paths = [*ROUTES, *PAGE, "/file", "/nothing"]
    words = "run=a&metric=loss&video=video.mp4&x=wall_s"
    for path in paths:
        for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
            status, headers, body = ask(server, f"{path}?{words}", method)
            refused = method not in ("GET", "HEAD")
            assert (status == 405) == refused, (method, path)
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert "default-src 'none'" in headers["Content-Security-Policy"]
            assert method != "HEAD" or body == b""
    assert ask(server, "/", "BREW")[0] == 501
    assert tree_hash(root) == before


def test_only_this_machine_and_this_page_may_ask(server: Server) -> None:
    assert server.server_address[0] == "127.0.0.1"
    others = [a for a in socket.gethostbyname_ex(socket.gethostname())[2] if a[:4] != "127."]
    for address in others:
        with pytest.raises(OSError):
            socket.create_connection((address, server.server_address[1]), timeout=2).close()
    for host in ("127.0.0.1:1", "localhost", "LOCALHOST:80", "[::1]:80"):
        assert ask(server, "/api/runs", Host=host)[0] == 200
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", ""):
        assert ask(server, "/api/runs", Host=host)[0] == 403, host
    for site in ("cross-site", "same-site"):
        assert ask(server, "/api/runs", Sec_Fetch_Site=site)[0] == 403
    assert ask(server, "/api/runs", Sec_Fetch_Site="same-origin")[0] == 200


def test_nothing_outside_the_folder_is_read(server: Server, root: Path, tmp_path: Path) -> None:
    """Neither by a path nor by a link; a link is not followed even inside."""
    secret = write_run(tmp_path / "secret")
    (secret / "video.mp4").write_bytes(b"secret")
    (root / "link").symlink_to(secret)
    (root / "a" / "videos").symlink_to(secret)
    (root / "a" / "v.mp4").symlink_to(secret / "video.mp4")
    (root / "deep" / "b" / "log.txt").unlink()
    (root / "deep" / "b" / "log.txt").symlink_to(secret / "log.txt")
    server.runs._search_at = 0.0
    assert set(rows(server)) == {"a", "deep/b"}
    assert ask_json(server, "/api/run?run=a")["videos"] == []
    up = ("..", "../secret", "a/../../secret", "%2e%2e/secret", "..%2fsecret", "link", "/etc")
    for name in (*up, "a/", "./a", "", "a\0", "%00", "a//b", "deep"):
        for path in ROUTES.keys() - {"/api/runs", "/api/curves"}:
            assert ask(server, f"{path}?run={quote(name)}")[0] in (400, 404), (path, name)
        assert curve(server, name) == {"stamp": "", "x": [], "y": [], "exact": True, "reports": 0}
    for video in ("v.mp4", "videos/video.mp4", "../secret/video.mp4", "config.yaml", "log.txt"):
        assert ask(server, f"/file?run=a&video={quote(video)}")[0] == 404, video
    assert ask(server, "/api/log?run=deep/b")[0] == 404
    for path in ("/../../etc/passwd", "/page.html", "/runs/a/config.yaml", "//a"):
        assert ask(server, path)[0] in (400, 404), path


def test_a_hostile_folder_is_shown_as_text_or_refused(
    server: Server, root: Path, tmp_path: Path
) -> None:
    """Names with markup and bytes that are no text, a pipe, broken and endless lines, damaged and
    huge files: the answers are JSON, and come at once."""
    for name in (HOSTILE.replace("/", ""), os.fsdecode(b"\xff\xfe x")):
        write_run(root / name)
    os.mkfifo(root / "a" / "workers.json")
    pipe = write_run(root / "pipe", 0)
    (pipe / "metrics.jsonl").unlink()
    os.mkfifo(pipe / "metrics.jsonl")
    bad = write_run(root / "bad", 3)
    with (bad / "metrics.jsonl").open("ab") as out:
        out.write(b'{"env_steps": 1, "return_mean": "<b>"}\n[1]\nnull\n\xff\xff\n' + b"[" * 9999)
        out.write(b'\n{"env_steps": 1e999, "wall_s": 1, "return_mean": 1}\n')
        out.write(json.dumps({"wall_s": 9.0, "env_steps": 900, "return_mean": 8}).encode() + b"\n")
        out.write(b'{"env_steps": 1000, "wall_s": 9.5, "return_mean": 9}\n')
    (bad / "summary.json").write_bytes(b'{"status": {}, "wall_s": 1' + b"0" * 5000 + b"}")
    (bad / "lineage.jsonl").write_text('{"event": "resume", "lines": 0}\n' * 9000)
    (bad / "config.yaml").write_bytes(b"env: !!python/object:os.system\nalgo: \xff<b>\n" + b"x" * 9)
    with (root / "deep" / "b" / "config.yaml").open("wb") as out:
        out.truncate(1 << 40)  # without blocks on the disk
    server.runs._search_at, began = 0.0, time.monotonic()
    listed = rows(server)
    assert len(listed) == 6
    hostile = next(row for row in listed.values() if "onerror" in row["name"])
    assert hostile["name"] == HOSTILE.replace("/", ""), "as text; the page escapes it"
    assert all(run.isascii() and "<" not in run for run in listed)
    found = curve(server, "bad")
    assert found["x"] == [*found["x"][:-2], 900.0, 1000.0] and found["damaged"] == 5
    for run in listed:
        details = ask_json(server, f"/api/run?run={quote(run)}")
        assert details["metrics"] or run == "pipe"
        assert ask(server, f"/api/log?run={quote(run)}")[0] == 200
    assert "1,048,576" in ask_json(server, "/api/run?run=deep/b")["config"]
    assert ask(server, "/api/lineage?run=bad")[0] == 404
    assert time.monotonic() - began < 20.0


def test_videos_come_with_a_fixed_type_and_in_parts(server: Server, root: Path) -> None:
    data = bytes(range(256)) * 10
    (root / "a" / "videos").mkdir()
    (root / "a" / "videos" / "best 1.mp4").write_bytes(data)
    (root / "a" / "page.html").write_text("<script>alert(1)</script>")
    videos = ask_json(server, "/api/run?run=a")["videos"]
    assert [video["name"] for video in videos] == ["videos/best 1.mp4"]
    path = f"/file?run=a&video={quote(videos[0]['id'])}"
    status, headers, body = ask(server, path)
    assert (status, headers["Content-Type"], body) == (200, "video/mp4", data)
    for asked, part in (("0-9", data[:10]), ("2550-", data[2550:]), ("-5", data[-5:])):
        status, headers, body = ask(server, path, Range=f"bytes={asked}")
        assert (status, body) == (206, part) and headers["Content-Range"].endswith("/2560")
    assert ask(server, "/file?run=a&video=page.html")[0] == 404


def test_a_video_that_is_being_written_is_not_shown(server: Server, root: Path) -> None:
    (root / "a" / "videos").mkdir()
    for folder in (root / "a", root / "a" / "videos"):
        (folder / "x.mp4").write_bytes(b"whole")
        (folder / ".x.part.mp4").write_bytes(b"part")
    videos = ask_json(server, "/api/run?run=a")["videos"]
    assert {video["name"] for video in videos} == {"x.mp4", "videos/x.mp4"}


def test_a_population_is_shown_from_its_lineage(server: Server, root: Path) -> None:
    common = {"round": 0, "env_steps": 0, "wall_s": 0.0}
    events = [
        {"event": "start", "member": m, **common, "hyperparameters": {"lr": i + 1.0}}
        for i, m in enumerate("xy")
    ]
    later = {"round": 1, "env_steps": 50, "wall_s": 1.0}
    for member, objective in (("x", 1.0), ("y", 9.0)):
        more = {"objective": objective, "episodes": 3, "hyperparameters": {"lr": 1.0}}
        events.append({"event": "score", "member": member, **later, **more})
    copied = {"donor": "y", "donor_env_steps": 50, "objective": 1.0, "donor_objective": 9.0}
    events.append(
        {"event": "exploit", "member": "x", **later, **copied, "hyperparameters": {"lr": 2.0}}
    )
    text = "".join(json.dumps(event) + "\n" for event in events)
    (root / "a" / "lineage.jsonl").write_text(text)
    found = ask_json(server, "/api/lineage?run=a")
    members = {member["id"]: member for member in found["members"]}
    assert found["best"] == "y" and members["x"]["copied_from"] == "y"
    assert members["y"]["objective"] == 9.0 and found["hyperparameters"] == ["lr"]
    parents = [stretch["parent"] for stretch in found["stretches"]]
    assert sum(parent is not None for parent in parents) == 1


@pytest.mark.multiprocess
def test_the_command_serves_until_it_is_interrupted(start_cli: StartCli, root: Path) -> None:
    write_run(root / "a")
    process = start_cli("serve", str(root), "--port", "0")
    told = process.stdout.readline()
    port = int(told.split("127.0.0.1:")[1].split("/")[0])
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(b"GET /api/runs HTTP/1.0\r\nHost: localhost\r\n\r\n")
        assert connection.makefile("rb").readline().split()[1] == b"200"
    process.send_signal(2)
    assert process.wait(20) == 0


def test_a_port_that_is_taken_and_a_missing_folder_are_said(
    server: Server, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(root), "--port", str(server.server_address[1])]) == 2
    assert "give another one, or 0" in capsys.readouterr().err
    assert main(["serve", str(root / "none")]) == 2
    assert "there is no such folder" in capsys.readouterr().err
