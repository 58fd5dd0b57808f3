"""A run folder may come from somewhere else: nothing in it makes code run, and nothing in it leads
out of it, unless the user says so."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import sampleforge.torchrun
from sampleforge.api import load_policy, train
from sampleforge.cli import main
from sampleforge.cli.flags import _nested, config_parts
from sampleforge.config import ConfigError, docstrings, to_plain
from sampleforge.env.config import EnvConfig
from sampleforge.env.importable import importable_kwargs
from sampleforge.env.spec_json import spec_to_plain
from sampleforge.evaluation import evaluate
from sampleforge.models.config import ModelConfig
from sampleforge.run.folder.run_folder import RunFolder
from sampleforge.run.folder.trust import IMPORTABLE, Trust, naming_code
from sampleforge.topologies import registry
from sampleforge.topologies.config import ALGOS, AppoConfig, DdppoConfig
from tests.support import REPO
from tests.support.graphs import spec_of

OWN = "tests.support.envs:CodeEnv"


def config(run: Path, env: str = "CartPole-v1", **more: Any) -> AppoConfig:
    return AppoConfig(
        env=env,
        run_dir=str(run),
        seed=5,
        serial=True,
        quiet=True,
        train_for_env_steps=600,
        num_envs_per_worker=4,
        **more,
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("trained") / "run"
    train(config(run))
    return run


@pytest.fixture(scope="module")
def trained_own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in an environment of the user's own."""
    run = tmp_path_factory.mktemp("own") / "run"
    train(config(run, OWN, env_kwargs={"length": 7}))
    return run


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that exists once code of the folder has run: ``evil.py``, in the working directory,
    makes it, and so does the command of `hostile`."""
    made = tmp_path / "code has run"
    touch = f"import pathlib\npathlib.Path({str(made)!r}).touch()\n"
    work = tmp_path / "work"
    work.mkdir()
    (work / "evil.py").write_text(
        touch + "from sampleforge.models.encoders import MLP as Encoder\n"
    )
    monkeypatch.chdir(work)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "evil", raising=False)
    return made


def forged(trained: Path, folder: Path, **changes: Any) -> Path:
    """A copy of a run folder with other values in its config.yaml, by dotted name."""
    shutil.copytree(trained, folder)
    stored = yaml.safe_load((folder / "config.yaml").read_text())
    for name, value in changes.items():
        *parents, leaf = name.split("__")
        place = stored
        for parent in parents:
            place = place[parent]
        place[leaf] = value
    (folder / "config.yaml").write_text(yaml.safe_dump(stored))
    return folder


def hostile(canary: Path, trained: Path) -> dict[str, Path]:
    """Run folders that would run code, by the field that names it."""
    command = {"cmd": f"touch '{canary}'"}
    folders = canary.parent
    return {
        "env": forged(trained, folders / "a", env="subprocess:getoutput", env_kwargs=command),
        "model.encoder": forged(trained, folders / "b", model__encoder="evil:Encoder"),
        "env_kwargs": forged(
            trained, folders / "c", env="GymV26Environment-v0", env_kwargs={"env_id": "evil:X"}
        ),
        "env: 'evil:CartPole-v1'": forged(trained, folders / "d", env="evil:CartPole-v1"),
    }


@pytest.mark.long
def test_a_foreign_folder_runs_no_code_in_eval(
    canary: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, folder in hostile(canary, trained).items():
        assert main(["eval", str(folder), "--episodes", "1"]) == 2
        error = capsys.readouterr().err
        assert f"{folder}/config.yaml names code" in error and name in error
        assert "--trust" in error and "or repeat the values: --" in error
        assert not canary.exists(), name


@pytest.mark.long
def test_a_foreign_folder_runs_no_code_in_load_policy(canary: Path, trained: Path) -> None:
    """With spec.json no environment is needed, so that what names one is not refused; without it
    the environment would be constructed."""
    for name, folder in hostile(canary, trained).items():
        if name == "model.encoder":
            with pytest.raises(ConfigError, match="trust=True"):
                load_policy(folder)
        else:
            assert load_policy(folder).act([0.0] * 4)[0] in (0, 1)
        (folder / "spec.json").unlink()
        with pytest.raises(ConfigError, match="trust=True"):
            load_policy(folder)
        assert not canary.exists(), name


def test_a_foreign_folder_runs_no_code_in_resume(canary: Path, trained: Path) -> None:
    """Also if it claims that its values had been left open: they never are."""
    for number, (name, folder) in enumerate(hostile(canary, trained).items()):
        lie = {"env": "CartPole-v1", "env_kwargs": {}, "model.encoder": "auto"}
        again = forged(folder, folder.parent / f"lies-{number}", left_open=lie)
        for run in (folder, again):
            with pytest.raises(ConfigError, match="cannot go on with these changes"):
                train(config(run, train_for_seconds=0.1))
        assert not canary.exists(), name


@pytest.mark.long
def test_the_other_verbs_import_nothing_from_a_folder(canary: Path, trained: Path) -> None:
    for name, folder in hostile(canary, trained).items():
        out = str(canary.parent / f"{folder.name}.svg")
        assert main(["plot", str(folder), "--out", out]) == 0
        assert main(["presets"]) == 0
        assert not canary.exists(), name


def test_code_that_a_trusted_folder_names_is_used(
    trained_own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["eval", str(trained_own), "--episodes", "4"]
    assert main(command) == 2
    error = capsys.readouterr().err
    repeated = ["--env", OWN, "--env-kwargs", "length=7"]
    assert " ".join(repeated) in error
    assert main([*command, "--env", OWN]) == 2, "its arguments go to it"
    assert "  env_kwargs: {'length': 7}\n" in capsys.readouterr().err
    for said in (["--trust"], repeated):
        assert main([*command, *said]) == 0
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["length_mean"] == 7
    assert main([*command, "--env", "CartPole-v1"]) == 2
    assert (
        f"--env CartPole-v1: the run in {trained_own} was trained with" in capsys.readouterr().err
    )
    assert load_policy(trained_own, trust=True).act([0.0] * 4)[0] in (0, 1, 2)


def test_an_encoder_can_be_repeated(
    canary: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = hostile(canary, trained)["model.encoder"]
    command = ["eval", str(folder), "--episodes", "1", "--model.encoder"]
    assert main([*command, "evil:Other"]) == 2
    assert main([*command, "evil:Encoder"]) == 0
    assert canary.exists()


def test_code_of_the_program_that_trained_may_be_named_in_a_module(
    canary: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script or a notebook, which no other program can import: nothing else would help."""
    own = hostile(canary, trained)["model.encoder"]
    folder = forged(own, canary.parent / "main", model__encoder="__main__:Encoder")
    command = ["eval", str(folder), "--episodes", "1"]
    for said in ([], ["--trust"], ["--model.encoder", "__main__:Encoder"]):
        assert main([*command, *said]) == 2
        assert "and add --model.encoder my_module:Encoder" in capsys.readouterr().err
    assert not canary.exists()
    assert main([*command, "--model.encoder", "evil:Encoder"]) == 0
    assert canary.exists()


def test_a_run_goes_on_with_code_of_its_program_that_is_in_a_module_now(
    canary: Path, trained: Path
) -> None:
    main_module = {"model__encoder": "__main__:Encoder"}
    own = forged(trained, canary.parent / "b", model__encoder="evil:Encoder")
    train(dataclasses.replace(config(own), model=ModelConfig(encoder="evil:Encoder")))
    run = forged(own, canary.parent / "main", **main_module)
    for encoder, is_taken in (("auto", False), ("evil:Encoder", True)):
        more = dataclasses.replace(config(run), train_for_env_steps=1200)
        more = dataclasses.replace(more, model=ModelConfig(encoder=encoder))
        if is_taken:
            assert train(more).summary["env_steps"] >= 1200
        else:
            with pytest.raises(ConfigError, match=r"model\.encoder: '__main__:Encoder' -> 'auto'"):
                train(more)
    assert "encoder: evil:Encoder" in (run / "config.yaml").read_text()


def test_own_environments_resume_as_before(tmp_path: Path, trained_own: Path) -> None:
    """The command line names them again."""
    run = tmp_path / "run"
    shutil.copytree(trained_own, run)
    more = dataclasses.replace(config(run, OWN, env_kwargs={"length": 7}), train_for_env_steps=1200)
    assert train(more).summary["env_steps"] >= 1200


@pytest.mark.parametrize(
    ("env", "kwargs", "importable"),
    [
        ("CartPole-v1", {"sutton_barto_reward": True}, []),
        ("ALE/Breakout-v5", {"repeat_action_probability": 0.25}, []),
        ("VizdoomBasic-v1", {"resolution": "256x144"}, []),
        ("FrozenLake-v1", {"map_name": "8x8", "is_slippery": False}, []),
        ("Ant-v5", {"xml_file": "ant.xml", "ctrl_cost_weight": 0.1}, []),
        ("Ant-v5", {"xml_file": "/tmp/ant.xml"}, ["xml_file"]),
        ("Ant-v5", {"xml_file": "../ant.xml"}, ["xml_file"]),
        ("CartPole-v1", {"render_mode": "a:b"}, ["render_mode"]),
        ("GymV21Environment-v0", {"env_id": "evil"}, ["env_id"]),
        ("Registered/Elsewhere-v0", {"module": "evil", "size": 3}, ["module"]),
        ("FrozenLake-v1", {"desc": ["SF", "HG"], "is_slippery": None}, []),
        ("Ant-v5", {"of": [1, {"deep": "../ant.xml"}], "names": {"a": "b"}}, ["of"]),
        ("Ant-v5", {"of": {"evil:make": 1}}, ["of"]),
        ("Registered/Elsewhere-v0", {"of": [["evil"]], "sizes": [1, None]}, ["of"]),
        ("mine:make", {"size": 3}, ["size"]),
        ("minigrid:MiniGrid-Empty-5x5-v0", {"size": 3}, ["size"]),
    ],
)
def test_which_env_kwargs_can_name_code(
    env: str, kwargs: dict[str, Any], importable: list[str]
) -> None:
    """Keyword arguments that can only hold plain values are taken from a folder without --trust."""
    assert list(importable_kwargs(EnvConfig(env=env, env_kwargs=kwargs))) == importable


def test_plain_arguments_need_no_trust(tmp_path: Path, trained: Path) -> None:
    folder = forged(trained, tmp_path / "run", env_kwargs={"sutton_barto_reward": True})
    assert evaluate(folder, episodes=2)["return_mean"] == -1


def test_every_field_that_names_code_is_known() -> None:
    """A new field of that kind has to be written into IMPORTABLE."""
    found = set()
    for cls in ALGOS.values():
        docs = {name: text for part in config_parts(cls) for name, text in docstrings(part).items()}  # type: ignore[arg-type]
        for group, kind in _nested(cls).items():
            docs |= {f"{group}.{name}": text for name, text in docstrings(kind).items()}  # type: ignore[arg-type]
        found |= {name for name, text in docs.items() if "module:" in text}
    by_name = {"env", "model.encoder", "model.head", "policy_mapping", "callbacks"}
    by_name |= {"evaluate_env", "evaluate_function"}
    assert found == {*by_name, "anneal"}  # which a rank takes from its own command beside them
    assert by_name < set(IMPORTABLE)


@pytest.mark.long
def test_callbacks_of_a_folder_take_part_only_if_they_are_repeated(
    canary: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Importing the module that the folder names makes the canary."""
    folder = forged(trained, canary.parent / "run", callbacks=["evil:Mine"])
    assert main(["eval", str(folder), "--episodes", "1"]) == 0, "it plays without them"
    resume = ["train", "appo", "--env", "CartPole-v1", "--run-dir", str(folder), "--seed", "5"]
    resume += ["--serial", "--quiet", "--num-envs-per-worker", "4", "--train-for-env-steps", "900"]
    assert main(resume) == 2
    assert "callbacks: ['evil:Mine'] -> []" in capsys.readouterr().err
    assert not canary.exists()
    assert main([*resume, "--callbacks", "evil:Mine"]) == 2
    assert "evil has no class 'Mine' that is derived from" in capsys.readouterr().err
    assert canary.exists()


def test_evaluations_that_a_folder_names_are_not_used(canary: Path, trained: Path) -> None:
    """Neither the function nor the environment; only what the command gives is."""
    named: dict[str, Any] = {"evaluate_function": "evil:evaluate"}
    named["evaluate_env"] = "evil:CartPole-v1"
    more: dict[str, Any] = {"evaluate_interval": 100, "evaluate_env_kwargs": {"id": "evil:x"}}
    folder = forged(trained, canary.parent / "run", **named, **more)
    evaluate(folder, episodes=1)
    given = config(folder, evaluate_interval=100, evaluate_episodes=1)
    train(dataclasses.replace(given, train_for_env_steps=1500))
    assert not canary.exists()
    stored = dataclasses.replace(given, **named, evaluate_env_kwargs={"id": "evil:x"})
    found = naming_code(stored, IMPORTABLE)
    assert {name: found[name] for name in named} == named
    assert found["evaluate_env_kwargs"] == {"id": "evil:x"}
    assert not any(naming_code(given, IMPORTABLE).values())


def test_left_open_excuses_no_value_that_the_user_gives(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.create()
    asked = AppoConfig(env="CartPole-v1", learning_rate=0.01)
    folder.write_config(dataclasses.replace(asked, seed=3, learning_rate=9.0), asked)
    assert "learning_rate: 0.01" in folder.config_file.read_text(), "the folder lies"
    assert folder.check_resume(asked).used.learning_rate == 0.01
    fitted = dataclasses.replace(asked, learning_rate=9.0)
    assert folder.check_resume(asked, lambda _: fitted).used.seed == 3, "a seed may be left open"
    folder.close()


def test_yaml_makes_no_objects(canary: Path, trained: Path) -> None:
    folder = forged(trained, canary.parent / "run")
    text = f"!!python/object/apply:os.system ['touch \"{canary}\"']"
    config = folder / "config.yaml"
    changed = re.sub(r"(?m)^gamma: .*$", lambda _: f"gamma: {text}", config.read_text())
    assert text in changed
    config.write_text(changed)
    with pytest.raises(ConfigError, match="cannot be read"):
        evaluate(folder, episodes=1, trust=Trust(everything=True))
    assert not canary.exists()


@pytest.mark.long
def test_nothing_is_loaded_that_could_hold_code() -> None:
    unsafe = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
    package = REPO / "sampleforge"
    own = package / "runtime/by_value.py"  # what the program itself sends to its workers
    loading = [path for path in package.rglob("*.py") if "by_value.loads(" in path.read_text()]
    assert loading == [package / "env/given.py"]
    for path in sorted(set(package.rglob("*.py")) - {own}):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not unsafe & {name.split(".")[0] for name in names}, path
            if isinstance(node, ast.Call):
                call = ast.unparse(node.func)
                assert call not in ("torch.load", "yaml.load", "yaml.unsafe_load"), path
                assert call != "np.load" or "allow_pickle=False" in ast.unparse(node), path


@pytest.mark.parametrize(
    "name", ["checkpoints", "log.txt", ".lock", "config.yaml", "spec.json", "checkpoints/x"]
)
def test_links_out_of_the_folder_are_not_followed(tmp_path: Path, trained: Path, name: str) -> None:
    """Neither to read nor to write: the lock file would be emptied, and the log written on."""
    folder = forged(trained, tmp_path / "run")
    place, target = folder / name, tmp_path / "elsewhere"
    if place.exists():
        shutil.move(place, target)
    else:
        target.write_text("precious")
    before = sorted(target.iterdir()) if target.is_dir() else target.read_bytes()
    place.symlink_to(target)
    for use in (lambda: load_policy(folder), lambda: train(config(folder))):
        with pytest.raises(ConfigError, match=f"{name} is a link to {target}, outside"):
            use()
    assert (sorted(target.iterdir()) if target.is_dir() else target.read_bytes()) == before


def test_links_within_the_folder_are_followed(tmp_path: Path, trained: Path) -> None:
    folder = forged(trained, tmp_path / "run")
    (folder / "checkpoints").rename(folder / "kept")
    (folder / "checkpoints").symlink_to("kept")
    assert evaluate(folder, episodes=1)["episodes"] == 1


def test_a_pipe_in_the_folder_is_not_waited_for(tmp_path: Path, trained: Path) -> None:
    folder = forged(trained, tmp_path / "run")
    os.mkfifo(folder / "checkpoints" / "000000000001-0000000000000000.safetensors")
    with pytest.raises(ConfigError, match="neither a file nor a folder"):
        load_policy(folder)


def test_a_folder_that_is_the_working_directory_is_not_imported_from(
    tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = forged(trained, tmp_path / "run")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    assert main(["eval", ".", "--episodes", "1", "--quiet"]) == 0
    load_policy(".")
    assert str(folder) not in sys.path


def test_a_rank_takes_code_from_its_own_command_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What rank 0 says comes over the network."""
    own = DdppoConfig(env="CartPole-v1", device="cpu", env_kwargs={"sutton_barto_reward": True})
    said = dataclasses.replace(
        own,
        env="subprocess:getoutput",
        env_kwargs={"cmd": "true"},
        model=ModelConfig(encoder="evil:Encoder", core_size=7),
        seed=3,
    )

    class Planned(Exception):
        pass

    def plan(config: Any, spec: Any, device: str) -> Any:
        raise Planned(config)

    class FakeTopology:
        pass

    FakeTopology.plan = staticmethod(plan)  # type: ignore[attr-defined]
    FakeTopology.resolved = staticmethod(lambda config, spec: config)  # type: ignore[attr-defined]
    monkeypatch.setattr(registry, "pairing_over", lambda *_: FakeTopology)
    message = {
        "asked": to_plain(own),
        "config": to_plain(said),
        "spec": spec_to_plain(spec_of(own)),
        **{"resumes": 0, "env_steps": 0, "wall_s": 0.0},
    }
    with pytest.raises(Planned) as caught:
        sampleforge.torchrun.follower_graph(own, message, None)  # type: ignore[arg-type]
    found = caught.value.args[0]
    assert (found.env, found.env_kwargs) == (own.env, own.env_kwargs)
    assert (found.model.encoder, found.model.core_size, found.seed) == ("auto", 7, 3)
