"""A loaded policy acts as `sampleforge eval` does, on what the environment gives, without it."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

import sampleforge as sf
from sampleforge.api import LoadedPolicy, load_policy, train
from sampleforge.config import ConfigError
from sampleforge.env.adapter import env_spec
from sampleforge.env.spec_json import spec_from_plain, spec_to_plain
from sampleforge.evaluation import evaluate
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.config import ModelConfig
from sampleforge.run.folder.run_folder import RunFolder
from sampleforge.run.folder.trust import Trust
from sampleforge.spec import ACTION, EnvSpaces, EnvSpec, with_action_units
from sampleforge.topologies.config import ALGOS, AnyConfig
from tests.support import recorded_envs
from tests.support.envs import MixedActionEnv

TRUSTED = Trust(everything=True)
SMALL = ModelConfig(hidden_sizes=(16,))
GRU = ModelConfig(hidden_sizes=(16,), core="gru", core_size=8)
CASES: dict[str, tuple[str, str, ModelConfig]] = {
    "taxi": ("appo", "taxi", SMALL),
    "taxi, Q-network": ("apex", "taxi", SMALL),
    "blackjack": ("appo", "blackjack", SMALL),
    "discrete from 5": ("appo", "discrete from 5", SMALL),
    "discrete from 5, Q-network": ("apex", "discrete from 5", SMALL),
    "multidiscrete": ("appo", "multidiscrete from 3 and -1", SMALL),
    "multibinary": ("appo", "multibinary", SMALL),
    "box of one number": ("appo", "box of one number", SMALL),
    "tuple": ("ddppo", "tuple", SMALL),
    "dict": ("appo", "dict", SMALL),
    "box of .01": ("appo", "box of .01", SMALL),
    "squashed": ("appo", "box of .01", dataclasses.replace(SMALL, squash_actions=True)),
    "mask in obs": ("appo", "mask in obs", SMALL),
    "recurrent": ("appo", "discrete from 5", GRU),
    "normalised": ("appo", "tuple", dataclasses.replace(SMALL, normalise_observations=True)),
}
"""Algorithm, environment (see `tests.support.recorded_envs.make`), model."""


def config_of(case: str, run: Path) -> AnyConfig:
    """The config of a short run of one of the `CASES`."""
    algo, env, model = CASES[case]
    sizes: dict[str, Any] = {"rollout": 8, "num_envs_per_worker": 4, "learning_rate": 0.01}
    sizes |= {"apex": {"learning_starts": 64, "replay_capacity": 2000}}.get(algo, {})
    return ALGOS[algo](
        env="tests.support.recorded_envs:make",
        env_kwargs={"name": env},
        run_dir=str(run),
        seed=3,
        serial=True,
        quiet=True,
        device="cpu",
        train_for_env_steps=400,
        model=model,
        **sizes,
    )


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a short run of one of the `CASES`, made when it is first asked for."""
    found: dict[str, Path] = {}

    def run(case: str) -> Path:
        if case not in found:
            found[case] = tmp_path_factory.mktemp("runs") / "run"
            train(config_of(case, found[case]))
        return found[case]

    return run


@pytest.fixture
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process can be started, no environment made."""

    def refuse(*args: Any, **more: Any) -> None:
        raise AssertionError("an environment is made")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr("sampleforge.env.registry.make_vector", refuse)


def is_same(one: Any, other: Any) -> bool:
    """To the bit, and of the same types."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(one[k], other[k]) for k in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, np.ndarray):
        same = isinstance(other, np.ndarray) and one.dtype == other.dtype
        return bool(same and one.shape == other.shape and (one == other).all())
    return type(one) is type(other) and one == other


def episode(run: Path, **more: Any) -> list[recorded_envs.Step]:
    """What passed through the environment while `sampleforge eval` played one episode."""
    recorded_envs.STEPS.clear()
    evaluate(run, episodes=1, seed=11, trust=TRUSTED, max_episode_steps=40, **more)
    return list(recorded_envs.STEPS)


@pytest.mark.parametrize("case", CASES)
def test_a_loaded_policy_acts_as_eval_does(
    case: str, run_of: Callable[[str], Path], request: pytest.FixtureRequest
) -> None:
    run = run_of(case)
    steps = episode(run)
    space = recorded_envs.make(CASES[case][1]).action_space
    request.getfixturevalue("no_environment")
    policy = load_policy(run)
    state = None
    for obs, info, action in steps:
        mine, state = policy.act(obs, state, mask=info.get("action_mask"))
        assert is_same(mine, action), (mine, action)
        assert space.contains(mine)
    assert len(steps) > 1 or case == "blackjack"


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_a_batch_is_acted_on_as_its_observations_one_by_one(
    case: str, run_of: Callable[[str], Path]
) -> None:
    """Given and returned as gymnasium's vector environments do."""
    steps = episode(run_of(case))[:3]
    policy = load_policy(run_of(case))
    assert policy.spec.spaces is not None
    seen, many = policy.spec.spaces.observation, batch_space(policy.spec.spaces.action, len(steps))
    empty: Any = create_empty_array(seen, len(steps))
    batch = concatenate(seen, [step.obs for step in steps], empty)
    masks: list[Any] = [step.info.get("action_mask") for step in steps]
    rows = policy.model.state_size
    states = torch.rand(len(steps), rows) if rows else None
    together, after = policy.act(batch, states, mask=None if masks[0] is None else np.stack(masks))
    assert (after is None) == (rows == 0)
    for row, (step, mine) in enumerate(zip(steps, iterate(many, together), strict=True)):
        state = None if states is None else states[row : row + 1]
        alone, own = policy.act(step.obs, state, mask=masks[row])
        assert data_equivalence(as_arrays(mine), as_arrays(alone))
        assert own is None or after is None or torch.allclose(own[0], after[row], atol=1e-6)


def as_arrays(action: Any) -> Any:
    """An action whose numbers are arrays: of a batch, a Discrete one is numpy's."""
    if isinstance(action, dict):
        return {name: as_arrays(value) for name, value in action.items()}
    return tuple(map(as_arrays, action)) if isinstance(action, tuple) else np.asarray(action)


def test_actions_have_the_types_of_the_space(run_of: Callable[[str], Path]) -> None:
    found = {case: load_policy(run_of(case)).act(episode(run_of(case))[0].obs)[0] for case in [
        "discrete from 5", "multidiscrete", "multibinary", "box of one number", "tuple", "dict"
    ]}  # fmt: skip
    assert type(found["discrete from 5"]) is int and found["discrete from 5"] >= 5
    assert found["multidiscrete"].dtype == np.int32
    assert (found["multidiscrete"] >= [3, -1]).all()
    assert found["multibinary"].dtype == np.int8 and found["multibinary"].shape == (2, 2)
    assert found["box of one number"].dtype == np.float64
    number, box = found["tuple"]
    assert type(number) is int and box.dtype == np.float32
    assert set(found["dict"]) == {"body", "buttons", "move"}
    assert type(found["dict"]["move"]) is int and isinstance(found["dict"]["body"], tuple)


def test_drawn_actions_are_those_of_a_stochastic_evaluation(
    run_of: Callable[[str], Path],
) -> None:
    run = run_of("recurrent")
    steps = episode(run, stochastic=True)
    policy, state = load_policy(run), None
    generator = torch.Generator().manual_seed(11)
    for obs, _, action in steps:
        mine, state = policy.act(obs, state, stochastic=True, generator=generator)
        assert is_same(mine, action)


def test_predict_has_the_meaning_of_stable_baselines3(run_of: Callable[[str], Path]) -> None:
    """Actions are drawn unless told otherwise, and states of episodes that begin do not count."""
    run, equal = run_of("recurrent"), cast("Callable[..., bool]", torch.equal)
    obs = np.stack([step.obs for step in episode(run)[:3]])
    policy = load_policy(run)
    _, state = policy.act(obs)
    assert state is not None
    first, ahead = policy.predict(obs, state, np.array([True, False, True]), deterministic=True)
    begun, fresh = policy.act(obs)
    gone_on, later = policy.act(obs, state)
    assert isinstance(first, np.ndarray)
    assert first.tolist() == [begun[0], gone_on[1], begun[2]]
    assert fresh is not None and later is not None
    assert equal(ahead, torch.stack([fresh[0], later[1], fresh[2]]))
    assert equal(policy.predict(obs, state.numpy(), deterministic=True)[1], later), "or an array"
    all_begin = np.ones(3, bool)
    assert equal(policy.predict(obs, state.numpy(), all_begin, True)[1], policy.act(obs)[1])
    torch.manual_seed(5)
    drawn = [policy.predict(obs)[0].tolist() for _ in range(20)]
    torch.manual_seed(5)
    assert drawn == [policy.act(obs, stochastic=True)[0].tolist() for _ in range(20)]
    assert len({tuple(each) for each in drawn}) > 1
    single, after = policy.predict(obs[0], state[:1], True, True)
    assert isinstance(single, np.ndarray) and single.shape == begun[0].shape
    assert equal(after, policy.act(obs[0])[1])


@pytest.mark.long
def test_no_module_of_the_environment_is_imported(
    run_of: Callable[[str], Path], tmp_path: Path
) -> None:
    """In a fresh interpreter that has no such module, and in which no process can be started."""
    (tmp_path / "sampleforge").symlink_to(Path(sf.__file__).parent)
    script = f"""
import sys
def refuse(event, args):
    assert not event.startswith(("subprocess", "os.fork", "os.posix_spawn", "os.exec")), event
sys.addaudithook(refuse)
import sampleforge as sf
policy = sf.load_policy({str(run_of("taxi"))!r})
action, _ = policy.act(0, mask=[0, 0, 0, 0, 1, 0])
assert action == 4 and type(action) is int
wrong = [m for m in sys.modules if m.startswith(("tests", "sampleforge_envs"))]
assert not wrong, wrong
"""
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_another_checkpoint_than_latest_and_best_is_refused(
    run_of: Callable[[str], Path],
) -> None:
    run = run_of("taxi")
    with pytest.raises(ConfigError, match="which='bset': must be latest or best"):
        load_policy(run, "bset")
    with pytest.raises(ConfigError, match="which='bset': must be latest or best"):
        evaluate(run, episodes=1, which="bset", trust=TRUSTED)


def test_a_folder_without_spec_json_is_probed_and_said_so(
    run_of: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(run_of("discrete from 5"), run)
    (run / "spec.json").unlink()
    with pytest.raises(ConfigError, match="trust=True"):
        load_policy(run)
    policy = load_policy(run, trust=True)
    assert policy.spec == load_policy(run_of("discrete from 5")).spec
    said = capsys.readouterr().err
    assert "has no spec.json" in said and "is constructed once to read its spaces" in said


def test_the_policy_of_a_run_that_cuts_observations_off_does_so(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    train(
        sf.AppoConfig(
            env="CartPole-v1",
            clip_observations=True,
            train_for_env_steps=256,
            num_workers=1,
            num_envs_per_worker=2,
            rollout=16,
            run_dir=run,
            quiet=True,
        )
    )
    policy = load_policy(run)
    far, bound = np.array([9.0, 0.0, 0.0, 0.0], np.float32), np.float32(4.8)
    assert policy.as_rows(far)["obs"].tolist() == [[bound, 0.0, 0.0, 0.0]]


def test_rows_of_a_state_may_be_set_to_zero_where_episodes_begin() -> None:
    spec = env_spec("Fake-v0", EnvSpaces(FLOATS, spaces.Discrete(2), False))
    model = dataclasses.replace(SMALL, core="gru", core_size=4)
    policy = LoadedPolicy(ActorCritic(model, spec.observations, spec.actions), spec)
    _, states = policy.act(np.ones((2, 2)))
    assert states is not None
    states[0] = 0.0
    _, after = policy.act(np.ones((2, 2)), states)
    _, begun = policy.act(np.ones(2))
    assert after is not None and begun is not None
    assert torch.allclose(after[:1], begun) and not torch.allclose(after[1:], begun)


# ---- what it refuses ----


def policy_of(
    observation: spaces.Space[Any], action: spaces.Space[Any], mask_in_info: bool = False
) -> LoadedPolicy:
    spec = env_spec("Fake-v0", EnvSpaces(observation, action, mask_in_info))
    return LoadedPolicy(ActorCritic(SMALL, spec.observations, spec.actions), spec)


PIXELS = spaces.Box(0, 255, (3,), np.uint8)
FLOATS = spaces.Box(-1, 1, (2,), np.float32)


@pytest.mark.parametrize(
    ("space", "obs", "message"),
    [
        (FLOATS, [0.0, 0.0, 0.0], r"'obs' is \(3,\), expected \(2,\)"),
        (FLOATS, [0.0, float("nan")], "'obs' holds nan, but must be finite"),
        (FLOATS, np.array([0.0, 1e39]), r"'obs' holds 1e\+39, but must be finite"),
        (spaces.Box(-np.inf, np.inf, (1,), np.float64), [1e300], r"'obs' holds 1e\+300, but must"),
        (FLOATS, {"obs": [0.0, 0.0]}, r"'obs' must be an array of shape \(2,\).* a dict was given"),
        (FLOATS, "left", "but a str was given: 'left'; give the array itself"),
        (FLOATS, None, "but a NoneType was given: None"),
        (FLOATS, (np.zeros(2, np.float32), {}), "must be an array of shape .*a tuple was given"),
        (FLOATS, ["a", "b"], "of dtype <U1, expected float32"),
        (PIXELS, [0, 300, 0], r"'obs' holds 300 at \[1\], which is no uint8"),
        (PIXELS, [0.5, 0, 0], r"'obs' holds 0.5 at \[0\], which is no uint8"),
        (spaces.Discrete(3, start=2), 1, r"'obs' is 1, but must be in Discrete\(3, start=2\)"),
        (spaces.MultiBinary(3), [0, 1, 7], r"'obs' is \[0, 1, 7\], but must be in MultiBinary"),
        (spaces.Dict({"a": FLOATS}), {"b": [0.0, 0.0]}, "must be a value of Dict"),
        (spaces.Tuple((FLOATS, PIXELS)), ([0.0, 0.0],), "must be a value of Tuple"),
    ],
)
def test_an_observation_that_is_not_in_the_space_is_refused(
    space: spaces.Space[Any], obs: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        policy_of(space, spaces.Discrete(2)).act(obs)


def test_a_batch_whose_parts_differ_in_their_rows_is_refused() -> None:
    policy = policy_of(spaces.Dict({"a": FLOATS, "b": FLOATS}), spaces.Discrete(2))
    two, one = np.zeros((2, 2)), np.zeros(2)
    with pytest.raises(ValueError, match="same number of rows, but have 'a' 2, 'b' none"):
        policy.act({"a": two, "b": one})
    with pytest.raises(ValueError, match=r"'a' is \(0, 2\), expected \(2,\)"):
        policy.act({"a": two[:0], "b": two[:0]})
    with pytest.raises(ValueError, match=r"state is \(1, 3\), expected \(2, 0\)"):
        policy.act({"a": two, "b": two}, torch.zeros(1, 3))


def test_masks_are_asked_for_where_there_are_some() -> None:
    masked = policy_of(FLOATS, spaces.Discrete(2), mask_in_info=True)
    obs = np.zeros(2, np.float32)
    assert [masked.act(obs, mask=m)[0] for m in ([1, 0], [0, 1])] == [0, 1]
    with pytest.raises(ValueError, match=r"mask=info\['action_mask'\]"):
        masked.act(obs)
    with pytest.raises(ValueError, match="must have 2 entries"):
        masked.act(obs, mask=[1, 0, 1])
    with pytest.raises(ValueError, match="forbids every value"):
        masked.act(obs, mask=[0, 0])
    with pytest.raises(
        ValueError, match="Fake-v0 has no action masks; leave out the argument mask"
    ):
        policy_of(FLOATS, spaces.Discrete(2)).act(obs, mask=[1, 0])
    inside = spaces.Dict({"x": FLOATS, "action_mask": spaces.MultiBinary(2)})
    policy = policy_of(inside, spaces.Discrete(2))
    assert policy.act({"x": obs, "action_mask": [0, 1]})[0] == 1
    with pytest.raises(ValueError, match="in the observation leaf 'action_mask'; leave out"):
        policy.act({"x": obs, "action_mask": [0, 1]}, mask=[0, 1])


def test_a_tuple_of_masks_is_one_per_choice() -> None:
    policy = policy_of(FLOATS, spaces.MultiDiscrete([2, 3], start=[5, 0]), mask_in_info=True)
    action, _ = policy.act([0.0, 0.0], mask=(np.array([0, 1]), np.array([0, 0, 1])))
    assert action.tolist() == [6, 2]


@pytest.mark.parametrize("rows", [1, 3])
def test_a_batch_with_another_number_of_masks_is_refused(rows: int) -> None:
    """Masks of more rows were those of the first ones, whichever the observations were."""
    policy = policy_of(FLOATS, spaces.MultiDiscrete([2, 3]), mask_in_info=True)
    message = f"{rows} masks were given for a batch of 2 observations"
    for mask in (np.ones((rows, 5)), (np.ones((rows, 2)), np.ones((rows, 3)))):
        with pytest.raises(ValueError, match=message):
            policy.act(np.zeros((2, 2)), mask=mask)


# ---- spec.json ----


NESTED = spaces.Dict(
    [
        ("z", spaces.Box(np.array([-np.inf, 0.0], "f"), np.array([1.0, np.inf], "f"))),
        ("a", spaces.Tuple((spaces.Discrete(3, start=-4), spaces.MultiBinary(2)))),
        (7, spaces.MultiDiscrete([[2, 3], [4, 5]], dtype=np.int32)),  # type: ignore[list-item, arg-type]
        ("bits", spaces.Box(0, 1, (2, 2), np.bool_)),
        ("large", spaces.Box(-(2**62), 2**62, (1,), np.int64)),
    ]
)  # fmt: skip
SPECS = {
    "nested": env_spec("A-v0", EnvSpaces(NESTED, MixedActionEnv.action_space)),
    "masked": env_spec("B-v0", EnvSpaces(FLOATS, spaces.Discrete(3), True), frame_skip=4),
    "stacked": env_spec(
        "C-v0",
        EnvSpaces(spaces.Box(0, 255, (4, 8, 8), np.uint8), spaces.Discrete(3)),
        metadata={"frame_stack": {"obs": "zero"}},
        autoreset="same_step",
        max_episode_steps=9,
        protocol='with "quotes"',
    ),
    "units": env_spec("D-v0", EnvSpaces(FLOATS, spaces.Box(-0.01, 0.03, (2,), np.float64))),
}


def with_rescaling(spec: EnvSpec) -> EnvSpec:
    return with_action_units(spec, rescale=True)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("rescales", [False, True])
def test_a_spec_comes_back_as_it_was(name: str, rescales: bool) -> None:
    spec = with_rescaling(SPECS[name]) if rescales else SPECS[name]
    text = json.dumps(spec_to_plain(spec), allow_nan=False)
    again = spec_from_plain(json.loads(text))
    assert again == spec
    assert list(again.observations) == list(spec.observations)
    assert json.dumps(spec_to_plain(again)) == text


def changed(path: str, value: Any) -> Any:
    """The JSON of a spec with one value changed; None removes it."""
    plain = json.loads(json.dumps(spec_to_plain(with_rescaling(SPECS["nested"]))))
    *parents, last = [int(p) if p.isdigit() else p for p in path.split("/")]
    place = plain
    for parent in parents:
        place = place[parent]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return plain


BOX = "observation_space/spaces/0/1"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("format", 2, "format is 2, but this version of SampleForge reads format 1"),
        ("format", None, "format is missing"),
        ("autoresett", "x", "autoresett is unknown; did you mean autoreset"),
        ("autoreset", "never", "autoreset is 'never', but must be one of next_step, same_step"),
        ("frame_skip", 0, "frame_skip is 0, but must be a positive integer"),
        ("frame_skip", True, "frame_skip is True, but must be a positive integer"),
        ("max_episode_steps", "9", "max_episode_steps is '9', but must be a positive integer or"),
        ("mask_in_info", 1, "mask_in_info is 1, but must be true or false"),
        ("env_id", ["x"], "env_id is .*, but must be a string"),
        ("frame_stack", {"y": "zero"}, "is no observation leaf"),
        ("observation_space", [], "observation_space is .*, but must be a JSON object"),
        (f"{BOX}/type", "Text", "type is 'Text', but must be one of Box, Dict"),
        (f"{BOX}/type", ["Box"], "type is .*, but must be one of"),
        (f"{BOX}/code", "import os", "code is unknown"),
        (f"{BOX}/dtype", "object", "dtype is 'object', but must be one of"),
        (f"{BOX}/shape", [2, -1], "shape is .*, but must be a list of integers"),
        (f"{BOX}/shape", [1 << 20, 1 << 20], "must be of at most 268,435,456 elements"),
        (f"{BOX}/low", [0.0], r"spaces\[0\].low is \[0.0\], but must be 2 numbers"),
        (f"{BOX}/low", [0.0, "nan"], "low is 'nan', but must be a finite number"),
        (f"{BOX}/low", [0.0, 1e300], "must be within float32"),
        (f"{BOX}/low", [2.0, 0.0], "is not a valid Box space"),
        ("action_space/spaces/0/1/spaces/0/nvec", [0, 2], "is not a valid MultiDiscrete space"),
        ("observation_space/spaces/1/0", "z", "has the key 'z', which another space has"),
        ("observation_space/spaces/1", "z", r"must be \[key, space\]"),
    ],
)  # fmt: skip
def test_a_forged_spec_is_refused_by_its_value(path: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        spec_from_plain(changed(path, value))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "[" * 100_000, '{"format": 1}', '{"format": NaN}', "\xff"]
)
def test_a_damaged_spec_json_is_refused_by_its_name(
    text: str, run_of: Callable[[str], Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(run_of("discrete from 5"), run)
    (run / "spec.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"run/spec.json: .*(?s:.)*restore the file"):
        load_policy(run)


def test_a_spec_of_another_run_does_not_fit_the_weights(
    run_of: Callable[[str], Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(run_of("discrete from 5"), run)
    shutil.copy(run_of("multibinary") / "spec.json", run / "spec.json")
    with pytest.raises(ConfigError, match=r"(?s)do not fit the model that config.yaml and spec"):
        load_policy(run)


def test_eval_refuses_an_environment_that_has_changed(
    run_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    shutil.copytree(run_of("discrete from 5"), run)
    monkeypatch.setitem(recorded_envs.ACTIONS, "discrete from 5", spaces.Discrete(4, start=6))
    with pytest.raises(ConfigError, match=r"(?s)has other actions now than when.*start=5.*start=6"):
        evaluate(run, episodes=1, trust=TRUSTED)


def test_spec_json_is_written_at_the_start_and_names_no_place(
    run_of: Callable[[str], Path],
) -> None:
    run = run_of("box of .01")
    text = (run / "spec.json").read_text()
    assert str(run) not in text
    plain = json.loads(text)
    assert plain["rescale_actions"] and plain["action_space"]["type"] == "Box"
    spec = RunFolder.existing(run).read_spec()
    assert spec is not None and spec.actions[ACTION].low == (-1.0, -1.0)
