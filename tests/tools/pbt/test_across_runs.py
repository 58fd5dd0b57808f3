"""A population of runs: its launcher starts, restarts and resumes members; its record is whole."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from sampleforge.cli import main
from sampleforge.cli.flags import parse
from sampleforge.cli.pbt import PbtFlags, population_settings
from sampleforge.config import ConfigError
from sampleforge.populations import lineage
from sampleforge.populations.rounds import ExploitRule, ExploreRule, Parameter
from sampleforge.run.folder.checkpoint import CheckpointStore
from sampleforge.run.folder.stored_config import flat_fields
from sampleforge.tools.jobs.jobs import LaunchFailed, Work
from sampleforge.tools.jobs.training_job import Outcome, Status, read_outcome, write_outcome
from sampleforge.tools.pbt.across_runs import Population
from sampleforge.tools.pbt.member import MemberJob
from sampleforge.tools.pbt.member_change import MemberRules
from sampleforge.tools.pbt.published import MergedLineage, lineage_file, run_folder
from sampleforge.tools.pbt.settings import PopulationSettings
from sampleforge.topologies.config import ApexConfig, AppoConfig
from tests.support.jobs import JobsAtOnce, Write
from tests.support.processes import RunCli, StartCli, session_members
from tests.support.reward_envs import ShapedEnv
from tests.support.runs import until

SHAPED = "tests.support.reward_envs:ShapedEnv"

CONFIG = AppoConfig(
    env="CartPole-v1",
    serial=True,
    quiet=True,
    train_for_env_steps=3000,
    num_workers=1,
    num_envs_per_worker=8,
    seed=5,
)
RULES = MemberRules(
    period=1000,
    start=0,
    exploit=ExploitRule(replaced=0.5, donors=0.5),
    explore=ExploreRule(1.0, {"learning_rate": Parameter()}, steps=(1.5,)),
    turns=False,
    seed=5,
)
SETTINGS = PopulationSettings(2, CONFIG, RULES, {"learning_rate": (1e-5, 1e-2)}, max_restarts=2)


def new_population(
    tmp_path: Path, jobs: JobsAtOnce, settings: PopulationSettings = SETTINGS
) -> Population:
    folder = tmp_path / "population"
    folder.mkdir(exist_ok=True)
    return Population(settings, folder, jobs)


def run(population: Population) -> dict[str, Any]:
    for _ in range(200):
        if population.done:
            return population.summary()
        population.step()
    raise AssertionError("it never ends")


def test_a_setting_without_effect_is_told_of_once(tmp_path: Path) -> None:
    """The runs of members are quiet, and only their logs said so."""
    config = replace(CONFIG, vtrace_rho=0.5, train_for_env_steps=1000)
    jobs = JobsAtOnce(limit=2)
    run(new_population(tmp_path, jobs, replace(SETTINGS, config=config)))
    (text,) = jobs.take_messages()
    assert text.startswith("member 0: --vtrace-rho 0.5 has no effect: it is for")


@pytest.mark.long
def test_members_take_turns_where_there_are_fewer_jobs(tmp_path: Path) -> None:
    jobs = JobsAtOnce(limit=1)
    result = run(new_population(tmp_path, jobs))
    assert result["finished"] == 2 and result["failed"] == 0
    turns = [sorted(jobs.started[at : at + 2]) for at in (0, 2, 4)]
    assert turns == [["0", "1"]] * 3, "the one with the fewest env steps is next"
    folder = tmp_path / "population"
    events = lineage.read(folder / lineage.FILE)
    kinds = [event["event"] for event in events]
    assert result["copies"] == kinds.count("exploit") > 0
    assert result["mutations"] == kinds.count("explore") > 0
    assert json.loads((folder / "results.json").read_text()) == result
    for member in "01":  # each checkpoint says how many copies have been made by then
        copied = [
            e["env_steps"] for e in events if (e["event"], e["member"]) == ("exploit", member)
        ]
        manifest = run_folder(folder, member) / "checkpoints" / "manifest.json"
        entries = json.loads(manifest.read_text())["entries"]
        newest = {entry["env_steps"]: entry["copies"] for entry in entries}
        assert newest == {at: sum(each <= at for each in copied) for at in newest}
    first = [e["hyperparameters"]["learning_rate"] for e in events if e["event"] == "start"]
    assert 1e-5 <= min(first) < 10**-3.5 < max(first) <= 1e-2, "one from each half"


@pytest.mark.long
def test_every_member_has_a_seed_of_its_own(tmp_path: Path) -> None:
    run(new_population(tmp_path, JobsAtOnce(limit=2)))
    seeds = {
        line
        for member in "01"
        for line in (run_folder(tmp_path / "population", member) / "config.yaml")
        .read_text()
        .splitlines()
        if line.startswith("seed:")
    }
    assert len(seeds) == 2


@pytest.mark.long
def test_a_member_that_is_killed_starts_again(tmp_path: Path) -> None:
    jobs = JobsAtOnce(limit=2, killed=["1", "1"])
    population = new_population(tmp_path, jobs)
    assert run(population)["finished"] == 2
    assert jobs.started.count("1") == 3
    assert any("member 1 has died" in text for text in population.take_problems())


def test_a_member_that_dies_again_and_again_is_given_up(tmp_path: Path) -> None:
    """The others do not wait for it."""
    jobs = JobsAtOnce(limit=2, killed=["1"] * 10)
    population = new_population(tmp_path, jobs)
    result = run(population)
    assert (result["finished"], result["failed"], result["best"]) == (1, 1, "0")
    assert jobs.started.count("1") == SETTINGS.max_restarts + 1
    assert any("member 1 is given up" in text for text in population.take_problems())


@pytest.mark.parametrize("new", [True, False])
def test_a_member_that_is_interrupted_goes_on_as_long_as_it_gets_on(
    tmp_path: Path, new: bool
) -> None:
    """A time limit that is shorter than the start would begin it for ever."""
    times = 2 * SETTINGS.max_restarts

    class Interrupted(JobsAtOnce):
        def start(self, works: Mapping[str, Work]) -> None:
            interrupted = {}
            for name in works:
                folder = run_folder(tmp_path / "population", name)
                status: Status = "interrupted" if self.started.count(name) < times else "finished"
                interrupted[name] = partial(self._end, folder, status)
            super().start(interrupted)

        def _end(self, folder: Path, status: Status) -> None:
            (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
            if new:
                name = f"{len(self.started):012d}-0123456789abcdef.safetensors"
                (folder / "checkpoints" / name).touch()
            write_outcome(folder, Outcome(status))

    jobs = Interrupted(limit=1)
    population = new_population(tmp_path, jobs)
    result = run(population)
    assert (result["finished"], result["failed"]) == ((2, 0) if new else (0, 2))
    assert jobs.started.count("0") == (times + 1 if new else SETTINGS.max_restarts + 1)
    given_up = any("--slurm time=MINUTES" in text for text in population.take_problems())
    assert given_up == (not new)


def test_members_that_a_cluster_refuses_wait_and_begin_later(tmp_path: Path) -> None:
    class Refused(JobsAtOnce):
        def start(self, works: Mapping[str, Work]) -> None:
            self.asked = getattr(self, "asked", 0) + 1
            if self.asked > 1:
                super().start({name: Write(tmp_path / name) for name in works})

    jobs = Refused(limit=2)
    population = new_population(tmp_path, jobs)
    population.step()
    assert [member.state for member in population.members()] == ["waiting", "waiting"]
    population.step()
    assert jobs.started == ["0", "1"]
    assert [member.state for member in population.members()] == ["running", "running"]


@dataclass(frozen=True)
class Failing:
    folder: Path

    def __call__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_outcome(self.folder, Outcome("failed", "Traceback ...\nValueError: no such env"))


class FailingJobs(JobsAtOnce):
    def start(self, works: Mapping[str, Work]) -> None:
        failing = {}
        for name, work in works.items():
            assert isinstance(work, MemberJob)
            failing[name] = Failing(run_folder(work.folder, work.member))
        super().start(failing)


def test_a_population_that_cannot_be_trained_ends_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(LaunchFailed, match="no such env"):
        run(new_population(tmp_path, FailingJobs(limit=2)))


@pytest.mark.long
def test_a_resumed_population_goes_on_and_finished_members_rest(tmp_path: Path) -> None:
    first = new_population(tmp_path, JobsAtOnce(limit=1))
    for _ in range(3):
        first.step()
    second = new_population(tmp_path, JobsAtOnce(limit=1))
    assert not second.done and run(second)["finished"] == 2
    assert new_population(tmp_path, JobsAtOnce(limit=1)).done, "finished members rest"
    events = lineage.read(tmp_path / "population" / lineage.FILE)
    keys = [(event["event"], event["member"], event["round"]) for event in events]
    assert len(keys) == len(set(keys)), "nothing is logged twice"


@pytest.mark.long
def test_a_later_stop_condition_lets_finished_members_go_on(tmp_path: Path) -> None:
    run(new_population(tmp_path, JobsAtOnce(limit=2)))
    longer = replace(SETTINGS, config=replace(CONFIG, train_for_env_steps=4000))
    population = new_population(tmp_path, JobsAtOnce(limit=2), longer)
    assert not population.done
    run(population)
    assert all(m.published and m.published.env_steps >= 4000 for m in population.members())


def test_finished_members_rest_until_a_stop_condition_changes(tmp_path: Path) -> None:
    """Also those that a condition on a metric has ended, before their env steps."""
    early = replace(CONFIG, stop=("episodes>=5",), report_interval=0.01)
    settings = replace(SETTINGS, config=replace(early, train_for_env_steps=10**6))
    run(new_population(tmp_path, JobsAtOnce(limit=2), settings))
    again = JobsAtOnce(limit=2)
    assert new_population(tmp_path, again, settings).done and not again.started
    for more in ({"stop": ("episodes>=9",)}, {"stop": ()}, {"train_for_env_steps": 10**5}):
        changed = replace(settings, config=replace(settings.config, **more))
        assert not new_population(tmp_path, JobsAtOnce(limit=2), changed).done


def test_members_that_a_version_without_their_stop_conditions_has_finished_rest(
    tmp_path: Path,
) -> None:
    config = replace(CONFIG, train_for_env_steps=300)
    settings = replace(SETTINGS, config=config)
    run(new_population(tmp_path, JobsAtOnce(limit=2), settings))
    for member in "01":
        path = tmp_path / "population" / "published" / f"{member}.json"
        state = json.loads(path.read_text())
        del state["until"]
        path.write_text(json.dumps(state))
    assert new_population(tmp_path, JobsAtOnce(limit=2), settings).done
    longer = replace(settings, config=replace(config, train_for_env_steps=600))
    assert not new_population(tmp_path, JobsAtOnce(limit=2), longer).done


@pytest.mark.long
def test_members_may_join_later(tmp_path: Path) -> None:
    run(new_population(tmp_path, JobsAtOnce(limit=2)))
    before = json.loads((tmp_path / "population" / "population.json").read_text())["first"]
    jobs = JobsAtOnce(limit=3)
    result = run(new_population(tmp_path, jobs, replace(SETTINGS, size=3)))
    assert result["finished"] == 3 and set(jobs.started) == {"2"}
    after = json.loads((tmp_path / "population" / "population.json").read_text())["first"]
    assert after[:2] == before and len(after) == 3
    with pytest.raises(ConfigError, match="has 3 members"):
        new_population(tmp_path, JobsAtOnce())


@pytest.mark.parametrize(
    ("start", "period", "said"),
    [
        (5000, 2000, "the first round is at 6,000 env steps of each member"),
        (0, 6000, "the first round is at 6,000 env steps of each member"),
        (4000, 2000, None),
    ],
)
def test_a_population_that_ends_before_its_first_round_is_warned_of(
    start: int, period: int, said: str | None
) -> None:
    rules = replace(RULES, start=start, period=period)
    settings = replace(SETTINGS, config=replace(CONFIG, train_for_env_steps=6000), rules=rules)
    assert [said in text for text in settings.warnings if said] == [True] * (said is not None)
    assert len(settings.warnings) == (said is not None)


def test_other_settings_are_refused(tmp_path: Path) -> None:
    new_population(tmp_path, JobsAtOnce())
    other = replace(SETTINGS, config=replace(CONFIG, gamma=0.5))
    with pytest.raises(ConfigError, match=r"config\.gamma: 0.99 -> 0.5"):
        new_population(tmp_path, JobsAtOnce(), other)
    later = replace(SETTINGS, rules=replace(RULES, period=7))
    with pytest.raises(ConfigError, match=r"rules\.period: 1000 -> 7"):
        new_population(tmp_path, JobsAtOnce(), later)


def test_a_setting_that_a_stored_population_does_not_have_yet_had_its_default(
    tmp_path: Path,
) -> None:
    """So that a new setting needs no line for the populations that there are."""
    new_population(tmp_path, JobsAtOnce())
    file = tmp_path / "population" / "population.json"
    stored = json.loads(file.read_text())
    del stored["settings"]["config"]["value_coeff"]
    file.write_text(json.dumps(stored))
    new_population(tmp_path, JobsAtOnce())
    other = replace(SETTINGS, config=replace(CONFIG, value_coeff=0.7))
    with pytest.raises(ConfigError, match=r"config\.value_coeff: 0.5 -> 0.7"):
        new_population(tmp_path, JobsAtOnce(), other)


@pytest.mark.parametrize("first", [[{"env": 1.0}], [{"learning_rate": "x"}], 3, [{}]])
def test_a_folder_cannot_add_settings_to_a_member(tmp_path: Path, first: object) -> None:
    new_population(tmp_path, JobsAtOnce())
    path = tmp_path / "population" / "population.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({**stored, "first": first}))
    with pytest.raises(ConfigError, match="is damaged"):
        new_population(tmp_path, JobsAtOnce())


@pytest.mark.parametrize(
    "wrong",
    [
        {"run_dir": "x"},
        {"train_for_env_steps": None},
        {"num_policies": 2},
        {"benchmark": True},
        {"resume": "never"},
        {"record": "data"},
    ],
)
def test_configs_that_cannot_be_members_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="--"):
        replace(SETTINGS, config=replace(CONFIG, **wrong))


@pytest.mark.long
@pytest.mark.parametrize("make", [AppoConfig, ApexConfig])
def test_members_perturb_and_copy_the_numbers_that_shape_rewards(
    tmp_path: Path, make: type[Any]
) -> None:
    """And their environments use them, also after each resume, and no others."""
    more: dict[str, Any] = {"learning_starts": 200} if make is ApexConfig else {}
    shared = {"num_workers": 1, "num_envs_per_worker": 8, "train_for_env_steps": 3000}
    config = make(env=SHAPED, serial=True, quiet=True, seed=5, **shared, **more)
    rules = replace(RULES, explore=ExploreRule(1.0, {"env.bonus": Parameter()}, steps=(1.5,)))
    settings = PopulationSettings(2, config, rules, {"env.bonus": (0.1, 10.0)})
    ShapedEnv.used.clear()
    result = run(new_population(tmp_path, JobsAtOnce(limit=1), settings))
    assert result["finished"] == 2 and result["copies"] > 0
    events = lineage.read(tmp_path / "population" / lineage.FILE)
    first = [each["hyperparameters"] for each in events if each["event"] == "start"]
    assert 0.1 <= first[0]["env.bonus"] <= 10 and first[0]["env.cost"] == 0.25
    explored = [each for each in events if each["event"] == "explore"]
    assert explored and all(each["changed"].keys() == {"env.bonus"} for each in explored)
    set_to = {each["hyperparameters"]["env.bonus"] for each in events if each["event"] != "exploit"}
    assert ShapedEnv.used == set_to
    for member in "01":
        own = [each for each in events if each["member"] == member]
        store = CheckpointStore(run_folder(tmp_path / "population", member) / "checkpoints", 1)
        found = store.load(log=print)
        assert found is not None
        shaping = found[0].state["learner"]["tag"]["shaping"]
        assert shaping.items() <= own[-1]["hyperparameters"].items()
        assert set(found[0].state["statistics"]["returns"]) <= set(range(11)), "true results"


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (["--pbt-perturb", "env.bonsu", "appo", "--env", SHAPED], "env.bonsu cannot be perturbed"),
        (["--pbt-initial", "env.bonus=1..2", "ddppo", "--env", SHAPED], "ddppo cannot change"),
    ],
)
def test_numbers_that_shape_no_rewards_are_refused(
    words: list[str], refusal: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["pbt", "--population", "2", "--folder", str(tmp_path), *words]
    assert main([*command, "--train-for-env-steps", "100"]) == 2
    assert refusal in capsys.readouterr().err


def event(member: str, number: int) -> dict[str, Any]:
    position = {"member": member, "round": number, "env_steps": number, "wall_s": 0.0}
    return {"event": "score", **position, "objective": 1.0, "episodes": 1, "hyperparameters": {}}


def test_a_launcher_that_is_killed_while_it_merges_leaves_nothing_to_repair(tmp_path: Path) -> None:
    (tmp_path / "lineages").mkdir()
    for member in "01":
        own = lineage.Lineage(lineage_file(tmp_path, member))
        for number in (1, 2):
            own.append(event(member, number))
        own.close()
    MergedLineage(tmp_path, "01").update()
    whole = (tmp_path / lineage.FILE).read_bytes()
    for length in range(0, len(whole), 7):
        (tmp_path / lineage.FILE).write_bytes(whole[:length])
        merged = MergedLineage(tmp_path, "01")
        merged.update()
        assert sorted((e["member"], e["round"]) for e in merged.read()) == [
            *(("0", 1), ("0", 2)),
            *(("1", 1), ("1", 2)),
        ]


SMALL = (
    *("appo", "--env", "CartPole-v1", "--serial", "--num-workers", "1"),
    *("--num-envs-per-worker", "8", "--checkpoint-interval", "1"),
)


@pytest.mark.multiprocess(timeout=240)
def test_the_command_goes_on_after_kills_of_a_member_and_of_the_launcher(
    start_cli: StartCli, run_cli: RunCli, tmp_path: Path
) -> None:
    command = [
        *("pbt", "--population", "2", "--folder", "p", "--jobs", "2", "--pbt-period", "4000"),
        *(
            "--pbt-start",
            "0",
            "--pbt-initial",
            "learning-rate=1e-5..1e-2",
            *SMALL,
            "--train-for-env-steps",
            "40000",
        ),
    ]
    launcher = start_cli(*command)

    def job() -> psutil.Process | None:
        for member in session_members(launcher.pid):
            with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                if "submitit.core._submit" in " ".join(member.cmdline()):
                    return member
        return None

    merged = tmp_path / "p" / lineage.FILE
    until(lambda: merged.exists() and '"score"' in merged.read_text(), launcher)
    killed = until(job, launcher)
    killed.kill()
    until(lambda: (found := job()) is not None and found != killed, launcher)
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    done = run_cli(*command, timeout=150)
    assert done.returncode == 0, done.stderr + done.stdout
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["finished"] == 2 and result["failed"] == 0
    for member in "01":
        outcome = read_outcome(run_folder(tmp_path / "p", member))
        assert outcome is not None and outcome.status == "finished"


@pytest.mark.multiprocess(timeout=120)
def test_ctrl_c_ends_all_members_with_checkpoints(start_cli: StartCli, tmp_path: Path) -> None:
    launcher = start_cli(
        *("pbt", "--population", "2", "--folder", "p", "--jobs", "2", "--pbt-period", "1000000"),
        *(*SMALL, "--train-for-env-steps", "100000000"),
    )
    metrics = [run_folder(tmp_path / "p", member) / "metrics.jsonl" for member in "01"]
    until(lambda: all(path.exists() for path in metrics), launcher)
    launcher.send_signal(signal.SIGINT)
    stdout, stderr = launcher.communicate(timeout=60)
    assert launcher.returncode == 130, stderr
    assert json.loads(stdout.splitlines()[-1])["finished"] == 0
    for member in "01":
        run_dir = run_folder(tmp_path / "p", member)
        outcome = read_outcome(run_dir)
        assert outcome is not None and outcome.status == "interrupted"
        assert list((run_dir / "checkpoints").glob("*.safetensors"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["--pbt-perturb", "vtrace-rho", "learning-rate"],
            ["vtrace_rho has no effect: it is for --advantage vtrace, and gae was chosen"],
        ),
        (["--pbt-initial", "vtrace-rho=0.5..2"], ["vtrace_rho has no effect"]),
        (["--pbt-perturb", "value-clip"], ["value_clip is not perturbed: it is off"]),
        (["--pbt-perturb", "gamma", "--pbt-bounds", "gamma=0.9..0.99"], []),
        (["--launcher", "slurm", "--pbt-perturb", "vtrace-rho"], []),
        (["--pbt-bounds", "gamma=0.5..0.9"], ["gamma is 0.99, and the first perturbation"]),
    ],
)
def test_hyperparameters_without_effect_are_told_before_the_members_begin(
    words: list[str], told: list[str]
) -> None:
    flags = parse(PbtFlags, ["--population", "2", "--folder", "p", *words], "pbt", "")
    config = AppoConfig(env="CartPole-v1", train_for_env_steps=10**9)
    texts = population_settings(flags, config).warnings
    assert len(texts) == len(told)
    assert all(text.startswith(start) for text, start in zip(texts, told, strict=True)), texts


def test_the_command_says_what_has_no_effect(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sampleforge.tools.jobs.loop.run_jobs", lambda *_, **__: 0)
    words = ("pbt", "--population", "2", "--folder", str(tmp_path), "--pbt-perturb", "vtrace-rho")
    main([*words, *SMALL, "--train-for-env-steps", str(10**9)])
    assert "vtrace_rho has no effect: it is for --advantage vtrace" in capsys.readouterr().out


def settings_of_command(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *words: str
) -> PopulationSettings:
    """Return the settings of the population that a command would train."""
    begun: list[Population] = []

    def leave(population: Population, *_: object, **__: object) -> int:
        begun.append(population)
        return 0

    monkeypatch.setattr("sampleforge.tools.jobs.loop.run_jobs", leave)
    main(["pbt", "--population", "2", "--folder", str(folder), "--pbt-start", "0", *words])
    (population,) = begun
    return population.settings


REPLAY = ("--env", "CartPole-v1", "--train-for-env-steps", "3000")


@pytest.mark.parametrize("algo", ["apex", "sac"])
def test_members_save_their_replay_unless_it_is_turned_off(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, algo: str
) -> None:
    """In a folder of a version in which they saved none, too."""
    file = tmp_path / "settings.yaml"

    def saves(*more: str) -> bool:
        settings = settings_of_command(monkeypatch, tmp_path / "p", algo, *REPLAY, *more)
        return bool(flat_fields(settings.config)["save_replay"])

    file.write_text("save_replay: false\n")
    assert not saves("--no-save-replay") and not saves("--config", str(file))
    file.write_text("keep_checkpoints: 3\n")
    assert saves() and saves("--config", str(file))


@pytest.mark.long
def test_the_members_of_a_command_go_on_with_their_replay_after_each_round(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words = ("--pbt-period", "1000", "apex", "--learning-starts", "200", "--serial", "--quiet")
    few = ("--num-workers", "1", "--num-envs-per-worker", "8", "--seed", "5")
    settings = settings_of_command(monkeypatch, tmp_path / "population", *words, *few, *REPLAY)
    assert run(new_population(tmp_path, JobsAtOnce(limit=1), settings))["finished"] == 2
    for member in "01":
        log = (run_folder(tmp_path / "population", member) / "log.txt").read_text()
        assert log.count("resumed with the replay of") == 2 and "empty replay" not in log
