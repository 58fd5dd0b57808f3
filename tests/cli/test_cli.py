"""The command line: what it makes of flags, presets and files, and how it answers mistakes."""

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from sampleforge import presets
from sampleforge.cli import VERBS, main
from sampleforge.cli.train import parse_config
from sampleforge.cli.words import key_values
from sampleforge.config import ConfigError, to_plain, typed
from sampleforge.presets.scores import duration, read_scores
from sampleforge.run.screen.messages import banner
from sampleforge.topologies.config import ALGOS, AppoConfig

HELPS = [["--help"], ["train", "--help"], *(["train", algo, "--help"] for algo in ALGOS)]
HELPS += [[verb, "--help"] for verb in VERBS if verb != "train"]


@pytest.fixture
def own_presets(tmp_path, monkeypatch):
    """A folder of presets with one in it, in place of the packaged one."""
    (tmp_path / "appo").mkdir()
    preset = tmp_path / "appo" / "toy.yaml"
    preset.write_text(
        "# A toy.\nenv: CartPole-v1\nlr_schedule: linear\nlearning_rate: 1e-3\n"
        "model: {core: gru, hidden_sizes: [32]}\nbatch-size: 512\n"
    )
    monkeypatch.setattr(presets, "FOLDER", tmp_path)
    return preset


@pytest.mark.multiprocess
@pytest.mark.parametrize("args", HELPS, ids=" ".join)
def test_help_imports_nothing_heavy(args):
    """Help comes at once because of it (a tenth of a second; not timed here). That of one
    algorithm needs the config of no other."""
    heavy = {"torch", "numpy", "gymnasium", "tensorboardX", "matplotlib"}
    if args[0] == "train" and args[1] in ALGOS:
        modules = {algo: cls.__module__ for algo, cls in ALGOS.items()}
        heavy |= set(modules.values()) - {modules[args[1]]}
    code = (
        "import sys\nfrom sampleforge.cli import main\n"
        f"code = main({args!r})\n"
        f"found = {heavy} & set(sys.modules)\n"
        "sys.exit(f'imported {found}' if found else code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "usage: sampleforge" in done.stdout
    assert "\x1b" not in done.stdout  # no colours in a pipe


def test_flags_make_a_config():
    typed = (
        "--env X-v0 --num_workers 3 --model.core gru --no-async-rl --adam-betas 0.8 0.9 --serial "
        "--model.hidden-sizes 32 16 --env-kwargs frame_skip=2 name=a --seed 7"
    )
    config = parse_config("appo", typed.split())
    assert config == AppoConfig(
        env="X-v0",
        num_workers=3,
        async_rl=False,
        adam_betas=(0.8, 0.9),
        serial=True,
        model=type(config.model)(core="gru", hidden_sizes=(32, 16)),
        env_kwargs={"frame_skip": 2, "name": "a"},
        seed=7,
    )


@pytest.mark.long
@pytest.mark.parametrize("typed", ["1e6", "1000000", "1_000_000", "1.0e6"])
def test_whole_numbers_may_be_typed_with_an_exponent(typed, tmp_path):
    config = parse_config("apex", ["--env", "X", "--train-for-env-steps", typed])
    assert config.train_for_env_steps == 1_000_000
    assert (
        parse_config("apex", ["--env", "X", f"--replay-capacity={typed}"]).replay_capacity == 10**6
    )
    file = tmp_path / "mine.yaml"
    file.write_text(f"env: X\ntrain_for_env_steps: {typed}\n")
    assert parse_config("appo", ["--config", str(file)]).train_for_env_steps == 1_000_000


def flags_of(text):
    """The flags of a help, each with its text."""
    flags = []
    for line in text.splitlines():
        if re.match("[│ ] --[a-z]", line):
            flags.append(line.strip("│ "))
        elif flags:
            flags[-1] += " " + line.strip("│ ")
    assert "default: None" not in text and "{None}" not in text
    for flag in flags:
        name, text = re.match(r"(--\S+(?:, --\S+)*(?: [A-Z\[{]\S*)*)(.*)", flag).groups()
        assert text.strip(), f"{name} has no text"
        assert not re.search(r"\(default: [^)]*\)?\.? \(default: ", text), flag
    return [re.match(r"--[\w.-]+", flag)[0] for flag in flags]


@pytest.mark.parametrize("algo", ALGOS)
def test_help_shows_what_most_runs_need_and_help_all_the_rest(algo, capsys):
    assert main(["train", algo, "--help"]) == 0
    first = flags_of(capsys.readouterr().out)
    assert main(["train", algo, "--help-all"]) == 0
    text = capsys.readouterr().out
    assert first[0] == "--env" and 25 <= len(first) <= 40 and "--help-all" in first
    assert {*first} < {*flags_of(text)}
    assert "environment options" in text and "Discount per env step" in text


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in ("train", "describe")])
def test_the_flags_of_every_command_have_a_text(verb, capsys):
    assert main([verb, "--help"]) == 0
    flags_of(capsys.readouterr().out)


@pytest.mark.long
def test_describe_prints_the_wiring_without_training(capsys, tmp_path):
    args = ["--env", "CartPole-v1", "--num-workers", "2", "--num-envs-per-worker", "4"]
    assert main(["describe", "appo", *args]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("2 workers x 4 envs, batch 2,048, CPU, fp32\n")
    assert "2 actors --> learner" in shown and "take turns (no convolutions)" in shown
    assert not list(tmp_path.iterdir())


def test_a_flag_that_may_be_repeated_has_all_its_values():
    typed = "--env X --callbacks a:B --seed 1 --callbacks c:D e:F --callbacks=g:H --seed 2"
    config = parse_config("appo", typed.split())
    assert config.callbacks == ("a:B", "c:D", "e:F", "g:H")
    assert config.seed == 2, "of any other flag the last one counts"


def test_no_flags_are_the_defaults():
    assert parse_config("appo", ["--env", "X-v0"]) == AppoConfig(env="X-v0")


def test_flags_over_file_over_preset(own_presets, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("batch_size: 1024\nmodel: {core-size: 8}\nlearning_rate: 1e-2\n")
    args = f"--preset toy --config {file} --learning-rate 0.5 --train-for-env-steps 9".split()
    config = parse_config("appo", args)
    assert (config.env, config.batch_size, config.learning_rate) == ("CartPole-v1", 1024, 0.5)
    assert config.model.core == "gru" and config.model.core_size == 8
    assert config.model.hidden_sizes == (32,) and config.lr_schedule == "linear"


def test_settings_are_checked_after_preset_file_and_flags_are_joined(own_presets):
    with pytest.raises(ConfigError, match="--lr-schedule linear"):
        parse_config("appo", ["--preset", "toy"])


@pytest.mark.long
def test_unknown_presets_keys_and_files_are_refused(own_presets, tmp_path):
    with pytest.raises(ConfigError, match=r"Unknown appo preset tioy\. Did you mean toy"):
        parse_config("appo", ["--preset", "tioy"])
    own_presets.write_text("# Bad.\nlearning_rat: 1\n")
    with pytest.raises(ConfigError, match=r"preset toy: unknown key 'learning_rat'. Did you mean"):
        parse_config("appo", ["--preset", "toy"])
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        parse_config("appo", ["--config", str(tmp_path / "none.yaml")])
    own_presets.write_text("algo: apex\n")
    with pytest.raises(ConfigError, match="is a config for apex, not for appo"):
        parse_config("appo", ["--config", str(own_presets)])


@pytest.mark.parametrize(
    ("args", "answer"),
    [
        ("trian appo", "Did you mean `sampleforge train`?"),
        ("train apo", "Did you mean appo?"),
        ("train dqn", "Unknown algorithm dqn. Did you mean apex?"),
        ("train Rainbow", "Unknown algorithm Rainbow. Did you mean apex?"),
        ("train r2d2", "Did you mean apex?"),
        ("train bc", "Did you mean marwil?"),
        ("train ddpg", "Did you mean td3?"),
        ("train PPO", "Did you mean appo?"),
        ("train impala", "Did you mean appo?"),
        ("train a2c", "Did you mean appo?"),
        ("train --env CartPole-v1", "The algorithm comes before the flags"),
        ("train appo --env X --num-wokers 3", "Unknown flag --num-wokers. Did you mean --num-wor"),
        ("train appo --env X --nope 3", "`sampleforge train appo --help-all` lists the flags"),
        ("train appo --env X --serial=True", "True belongs to no flag: a switch has no value, it"),
        ("train appo --env X y", "y belongs to no flag; `sampleforge train appo --help` lists"),
        ("train appo --env X --model.core gruu", "--model.core gruu: must be one of none, gru, l"),
        ("train appo --env X --track x", "--track x: must be one of csv, wandb, trackio"),
        ("train appo --env X --reward-clip x", "--reward-clip x: must be a number or sign"),
        ("train appo --env X --gamma x", "--gamma x: must be a number"),
        ("train appo --env X --adam-betas 0.9", "--adam-betas: needs 2 values"),
        ("eval", "`sampleforge eval` needs RUN_DIR"),
        ("train appo", "--env CartPole-v1 --train-for-seconds 30"),
        ("train appo --env X --gamma 2", "--gamma 2.0: must be at least 0 and at most 1"),
        ("train appo --env X --learning-rate -1.0", "--learning-rate -1.0: must be above 0"),
        ("train appo --env X --model.core-size 0", "--model.core-size 0: must be at least 1"),
        ("train appo --env X --lr 1e-3", "Unknown flag --lr. Did you mean --learning-rate?"),
        ("train sac --env X --gradient-steps 1", "Did you mean --updates-per-env-step?"),
        (
            "train sac --env X --adam_beta1 1",
            "--adam-beta1. --adam-betas is a flag of appo, pqn and",
        ),
        (
            "train appo --env X --tau 1",
            "Unknown flag --tau. --target-rate is a flag of sac and td3",
        ),
        ("train pqn --env X --start-e 1", "Unknown flag --start-e. Did you mean --epsilon-first?"),
        ("train apex --env X --start-e 1", "an epsilon of its own, which does not fall"),
        ("train ddppo --env X --with_pbt", "use `sampleforge pbt --population N ddppo`"),
        ("train sac --env X --net-arch 64", "Did you mean --model.hidden-sizes?"),
        ("train sac --env X --capture-video", "`sampleforge eval RUN --video FILE.mp4` makes"),
        ("train appo --env X --evaluation-env Y", "Did you mean --evaluate-env?"),
        ("train appo --env X --policy-weights a=b", "Did you mean --init-from policy_1=RUN?"),
        ("train appo --env X --init-from a b", "--init-from: 'a b' must be RUN, or POLICY=RUN"),
        (
            "train ddppo --num-policies 2",
            "--num-policies is a flag of appo, pqn, apex, sac, crossq and td3; ddppo trains one "
            "policy",
        ),
        ("train appo --env X --resume must", "--resume must: there is no --run-dir"),
        (
            "train appo --env X --inference inline --num-policy-workers 2",
            "--inference inline --num-policy-workers 2: with inline inference",
        ),
        (
            "train appo --env X --no-async-rl --num-batches-to-accumulate 5",
            "--num-batches-to-accumulate 5: with --no-async-rl",
        ),
        ("train appo --env X --seed abc", "--seed abc: must be a whole number"),
        *(
            (f"{command} --seed 18446744073709551615", "at least 0 and at most 4294967295")
            for command in ("train appo --env X", "eval a", "record a", "estimate a b")
        ),
        ("tournament a b --seed 18446744073709551615", "at least 0 and at most 4294967295"),
        ("train appo --env X --env-kwargs a", "'a' has no value; write a=VALUE"),
        ("train appo --env X --env-kwargs a=1 b=2 a=3", "a is given twice; leave out one"),
        ("eval nothing", "nothing is not a run folder: there is no such folder"),
        ("eval nothing --episode 3", "--episodes"),
        ("eval -- -dash --episodes 2", "--episodes follows `--`, after which nothing is a flag"),
        ("eval -- -dash --nope", "Unknown flag --nope"),
        (f"eval {300 * 'x'}", "xxx is not a run folder: File name too long"),
        (f"eval {2100 * 'x/'}", "x/x is not a run folder: File name too long"),
        (f"train appo --env X --run-dir {300 * 'x'}", "xxx cannot be used: File name too long"),
        (f"train appo --env X --run-dir {2100 * 'x/'}", "x/x cannot be used: File name too long"),
        (f"plot {300 * 'x'}", "File name too long; give a shorter path"),
        (f"plot a --out {300 * 'x'}.png", "xxx.png: File name too long; give another file"),
        (f"plot a --out {300 * 'x'}/x.png", "there is no folder xxx"),
        ("record nothing --explore", "Unknown flag --explore. Did you mean --stochastic?"),
        ("estimate a b --greedy", "Unknown flag --greedy. Did you mean --no-stochastic?"),
        ("eval nothing --episodes 0", "--episodes 0: must be at least 1"),
        ("plot", "There is no run to draw"),
        ("plot a --out x.gif", "must end in one of .png"),
        ("presets nosuchpreset", "Unknown preset nosuchpreset"),
        ("doctor --fast", "--fast"),
    ],
)
def test_mistakes_are_answered_with_exit_code_2(args, answer, capsys):
    assert main(args.split()) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("sampleforge: error: ") and shown.count("\n") == 1
    assert answer in shown


def test_an_environment_that_breaks_its_spaces_in_a_run_ends_it_with_exit_code_1(tmp_path, capsys):
    """As in a process of its own: the command line was good."""
    args = "train appo --serial --quiet --env tests.support.envs:WrongDtypeEnv --env-kwargs"
    run = ["--run-dir", str(tmp_path / "run")]
    assert main([*args.split(), "wrong=shape", "after=9", *run]) == 1
    shown = capsys.readouterr().err
    assert "sampleforge: error: tests.support.envs:WrongDtypeEnv, row " in shown
    assert "observation leaf 'obs' must be float32 of shape (4,)" in shown.splitlines()[-1]


def test_a_command_without_a_verb_shows_the_usage(capsys):
    assert main([]) == 2
    assert "commands:" in capsys.readouterr().out


def test_a_command_says_for_which_threads_it_waits_and_ctrl_c_leaves_them():
    script = (
        "import threading, time\nfrom sampleforge import cli\ncli.THREADS_S = 0.2\n"
        "threading.Thread(target=time.sleep, args=(600,), name='server').start()\n"
        "cli.command(['--version'])"
    )
    words = [sys.executable, "-c", script]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        said = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0
    assert said.startswith("Done, but for threads that have not ended: server. Ctrl-C")


def test_keyword_arguments_of_an_environment_are_values_in_yaml(tmp_path: Path) -> None:
    words = ["sizes=[1, 2.5, x]", "goal={x: 1, y: [true]}", "map=null", "name=a b", "rate=1e-3"]
    expected = {
        "sizes": [1, 2.5, "x"],
        "goal": {"x": 1, "y": [True]},
        "map": None,
        "name": "a b",
        "rate": 1e-3,
    }
    asked = parse_config("appo", ["--env", "CartPole-v1", "--env-kwargs", *words])
    assert asked.env_kwargs == expected
    again = shlex.split(typed("env_kwargs", asked.env_kwargs))
    assert parse_config("appo", ["--env", "CartPole-v1", *again]).env_kwargs == expected
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(to_plain(asked)))
    assert parse_config("appo", ["--config", str(file)]).env_kwargs == expected
    with pytest.raises(ConfigError, match=r"--env-kwargs: .* is no list or dict in YAML"):
        parse_config("appo", ["--env", "CartPole-v1", "--env-kwargs", "sizes=[1, 2"])
    given = AppoConfig(env="CartPole-v1", env_kwargs={"sizes": (1, np.float32(2.5))})
    assert given.env_kwargs == {"sizes": [1, 2.5]}
    with pytest.raises(ConfigError, match=r"env_kwargs: <object .*package\.module:factory"):
        AppoConfig(env="CartPole-v1", env_kwargs={"simulator": object()})


def test_key_values_are_numbers_switches_or_texts():
    words = ["a=1", "b", "0.25", "c=true", "d=x=y", "e=1e-4", "f=2020-01-01", "g=[", "h=-3"]
    expected = {"a": 1, "b": 0.25, "c": True, "d": "x=y", "e": 1e-4, "f": "2020-01-01", "g": "["}
    assert key_values(words) == {**expected, "h": -3}


def test_presets_are_listed_and_printed(own_presets, capsys):
    assert main(["presets"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if "toy" in line)
    assert row.split() == ["appo", "toy", "CartPole-v1", "not", "measured"]
    assert main(["presets", "toy"]) == 0
    assert capsys.readouterr().out == own_presets.read_text()


@pytest.mark.long
@pytest.mark.parametrize(
    ("algo", "name"), [(algo, name) for algo in ALGOS for name in presets.preset_names(algo)]
)
def test_packaged_presets_are_whole(algo, name):
    stop = ["--train-for-env-steps", "1000"]
    config = parse_config(algo, ["--preset", name, *stop])
    assert config.env
    path = presets.preset_file(algo, name)
    purpose = path.read_text().splitlines()[0]
    assert purpose.startswith("# ") and len(purpose) > len("# ")


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ([""], [*VERBS]),
        (["train", ""], [*ALGOS]),
        (["train", "appo", "--num-w"], ["--num-workers"]),
        (["train", "appo", "--lr-schedule", "l"], ["linear"]),
        (["train", "appo", "--preset", "minig"], ["minigrid-memory"]),
        (["train", "appo", "--track", ""], ["csv", "wandb", "trackio"]),
        (["eval", "run", "--no-s"], ["--no-stochastic"]),
        (["eval", "ru"], []),  # files, by the shell
        (["eval", "run", "--tr"], ["--trust"]),
        (["tune", "CartPole-v1", "appo", "--con"], []),
        (["tune", "CartPole-v1", "appo", "--preset", "minig"], ["minigrid-memory"]),
        (["tune", "CartPole-v1", "appo", "--for", ""], ["speed", "return"]),
        (["pbt", "--population", "2", "--folder", "apex", "--pbt-fa"], ["--pbt-factors"]),
        (["pbt", "--folder", "apex", "appo", "--preset", "minig"], ["minigrid-memory"]),
        (["pbt", "--folder", "apex", "appo", "--minib"], ["--minibatch-size"]),
        (["train", "--preset", ""], []),
        (["train", "--seed", "--"], []),
        (["--preset", ""], []),
    ],
)
def test_the_shell_is_offered_what_can_follow(typed, offered, capsys):
    assert main(["completion", "--words", *typed]) == 0
    assert capsys.readouterr().out.split() == offered


@pytest.mark.multiprocess
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes():
    script = """\
set -u
PATH=$1:$PATH; eval "$(sampleforge completion)"
COMP_WORDS=(sampleforge train appo --min) COMP_CWORD=3
_sampleforge; echo "${COMPREPLY[@]}"; complete -p sampleforge"""
    found = subprocess.run(
        ["bash", "-c", script, "bash", str(Path(sys.executable).parent)],
        capture_output=True,
        text=True,
    )
    assert found.stdout.splitlines()[0] == "--minibatch-size", found.stderr
    assert "-F _sampleforge" in found.stdout


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_presets_fit_into_a_terminal(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(["presets"]) == 0
    lines = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= columns
    row = next(line for line in lines if "cartpole " in line).split()
    score = read_scores()["appo", "cartpole", ""]
    assert row[:2] == ["appo", "cartpole"] and row[-2:] == duration(score.time).split()
    assert ("CartPole-v1" in row) == (columns == 120)
    assert main(["presets", "cartpole"]) == 0
    measured = f"# appo, CartPole-v1: {score.score:,.5g} ({len(score.seeds)}) on "
    assert measured in capsys.readouterr().out


def test_a_run_without_a_stop_condition_says_so():
    endless = "No stop condition"
    assert endless in banner(AppoConfig(env="X-v0"))
    assert endless not in banner(AppoConfig(env="X-v0", stop=("loss<1",)))
    assert endless not in banner(AppoConfig(env="X-v0", train_for_seconds=1))


def test_envs_lists_by_family(capsys):
    assert main(["envs", "cartpole-v1"]) == 0
    assert "CartPole-v1" in capsys.readouterr().out
    assert main(["envs", "cartpoel"]) == 2
    assert "CartPole" in capsys.readouterr().err


def test_eval_prints_json_last(monkeypatch, capsys, tmp_path):
    """The verb alone; evaluation has its own tests."""
    evaluation = pytest.importorskip("sampleforge.evaluation")

    def fake(run_dir, **kwargs):
        print("protocol: one life")
        assert not kwargs.pop("trust").everything
        kwargs.pop("observers").alive()
        return {"return_mean": 1.0, "return_std": float("nan"), "returns": [1.0], **kwargs}

    monkeypatch.setattr(evaluation, "evaluate", fake)
    assert main(["eval", str(tmp_path), "--episodes", "3", "--stochastic", "--seed", "5"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["episodes"], found["stochastic"], found["seed"]) == (3, True, 5)
    assert found["return_std"] is None and "returns" not in found
