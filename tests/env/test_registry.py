"""Names of environments: what is found, and what is answered otherwise."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import ClipReward, RecordEpisodeStatistics

from sampleforge.cli import main
from sampleforge.config import ConfigError
from sampleforge.env import gymnasium_ids, registry
from sampleforge.env.config import EnvConfig
from sampleforge.env.old_gym import space_of
from sampleforge.env.place import row_seeds
from sampleforge.env.user_code import scratch_directory
from sampleforge.env.vector import EnvVector

Register = Callable[[str, Callable[..., object]], None]


@pytest.fixture
def registered() -> Iterator[Register]:
    """Registers ids with gymnasium for the length of a test."""
    names: list[str] = []

    def register(name: str, entry_point: Callable[..., Any]) -> None:
        names.append(name)
        gym.register(name, entry_point)

    yield register
    for name in names:
        del gym.registry[name]


def vector(env: str, **kwargs: object) -> EnvVector:
    return registry.make_vector(EnvConfig(env=env, **kwargs), 1, [0])  # type: ignore[arg-type]


def test_the_bundled_families_are_found_through_their_entry_points() -> None:
    names = {family.name for family in registry.families()}
    assert names >= {"atari", "box2d", "classic", "minatar", "minigrid", "mujoco", "vizdoom"}
    known = registry.known_ids()
    for env_id in (
        "CartPole-v1",
        "ALE/Pong-v5",
        "MinAtar/Breakout",
        "HalfCheetah-v5",
        "Acrobot-v1",
        "LunarLander-v3",
    ):
        assert env_id in known


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "ALE/Brekout-v5",
            r"^Unknown environment ALE/Brekout-v5. Did you mean ALE/Breakout-v5\? If not: .*mod",
        ),
        ("CartPole-v7", r"Did you mean CartPole-v1\?$"),
        ("cartpole", r"Did you mean CartPole-v1\?$"),
        ("MinAtar/breakout", r"Did you mean MinAtar/Breakout(-v1)?\?$"),
        ("HalfCheeta-v5", r"Did you mean HalfCheetah-v5\?"),
        ("cheetah-v1", r"Did you mean HalfCheetah-v5\?"),
        (
            "FlappyBird-v0",
            "^Unknown environment FlappyBird-v0. `sampleforge envs` lists .*module:Id",
        ),
        ("highway-fast-v0", "^Unknown environment highway-fast-v0. `sampleforge envs` lists"),
        ("DescentEnv-v0", "^Unknown environment DescentEnv-v0. `sampleforge envs` lists"),
        ("LunarLander-v2", r"Did you mean LunarLander-v3\?$"),
        ("BreakoutNoFrameskip-v4", r"Did you mean ALE/Breakout-v5\?$"),
        ("Breakout-v5", r"Did you mean ALE/Breakout-v5\?$"),
        ("PongDeterministic-v0", r"Did you mean ALE/Pong-v5\?$"),
        ("atari_mspacman", r"Did you mean ALE/MsPacman-v5\?$"),
        ("Blackjack-v0", r"Did you mean Blackjack-v1\?$"),
        ("HalfCheetah-v2", r"Did you mean HalfCheetah-v5\?$"),
        ("mujoco_walker", r"Did you mean Walker2d-v5\?$"),
        ("doom_health_gathering", r"Did you mean VizdoomHealthGathering-v1\?$"),
        ("0123456789", "^Unknown environment 0123456789. .*module:Id.*package.module:factory$"),
        ("nosuch.module:make", "there is no module 'nosuch'"),
        (
            "tests.support.envs:CodeEnvs",
            "has no factory 'CodeEnvs', and importing it registers no environment 'CodeEnvs'. "
            r"Did you mean tests.support.envs:CodeEnv\?$",
        ),
        (
            "tests.support.envs:Acrobt-v1",
            "has no factory 'Acrobt-v1', and importing it registers no environment 'Acrobt-v1'. "
            r"Did you mean Acrobot-v1\?$",
        ),
        ("tests.support.envs:code_reward", "missing 3 required positional"),
        (f"{__name__}:not_an_env", "returned a value of type int, but must return a gymnasium Env"),
        (
            f"{__name__}:rows_of_no_argument",
            r"VectorEnv, any other an Env, of \w+ or of PettingZoo$",
        ),
        (f"{__name__}:not_a_vector", "a factory that takes num_envs returns a VectorEnv"),
    ],
)
def test_a_wrong_name_is_answered_with_the_right_one(
    name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # ALE registers its earlier protocols too, in processes that have asked for the known ids.
    if not name.startswith("HalfCheetah"):
        monkeypatch.delitem(gym.registry, name, raising=False)
    with pytest.raises((ConfigError, TypeError), match=message):
        vector(name)


def rows_of_no_argument() -> gym.vector.VectorEnv[Any, Any, Any]:
    return gym.make_vec("CartPole-v1", num_envs=4)


def wrapped_cartpole() -> gym.Env[Any, Any]:
    return ClipReward(RecordEpisodeStatistics(gym.make("CartPole-v1")), -2, 2)


def test_a_factory_keeps_its_wrappers_but_not_the_checks_of_each_step() -> None:
    envs = vector(f"{__name__}:wrapped_cartpole")
    names, env = [], envs.row_env(0)
    while isinstance(env, gym.Wrapper):
        names.append(type(env).__name__)
        env = env.env
    assert names == ["ClipReward", "RecordEpisodeStatistics", "TimeLimit"]
    assert envs.spec.max_episode_steps == 500
    envs.close()
    assert gymnasium_ids.without_checkers(gym.make("CartPole-v1")).unwrapped.spec is not None


def test_keyword_arguments_may_be_lists() -> None:
    kwargs = {"desc": ["SF", "FG"], "is_slippery": False}
    envs = vector("FrozenLake-v1", env_kwargs=kwargs)
    assert envs.spec.observations["obs"].categories == (4,)
    envs.close()


def test_the_installed_package_that_registers_an_id_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it registers another version, or the id in a namespace."""
    made = tmp_path / "flappy_thing"
    made.mkdir()
    (made / "__init__.py").write_text('register(id="FlappyBird-v1")\nregister(id="fly/Deep-v3")\n')
    about = tmp_path / "flappy_thing-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: flappy-thing\nVersion: 1.0\nRequires-Dist: gymnasium>=1.0\n"
    )
    (tmp_path / "flappy_thing" / "filled.py").write_text('ids = f"Filled-{s}x{s}{more}-v2"')
    (about / "RECORD").write_text(
        "".join(f"flappy_thing/{each}.py,,\n" for each in ("__init__", "lost", "filled"))
    )
    monkeypatch.syspath_prepend(tmp_path)
    message = "The package flappy-thing registers it .*: --env flappy_thing:FlappyBird-v1$"
    with pytest.raises(ConfigError, match=message):
        vector("FlappyBird-v0")
    with pytest.raises(ConfigError, match=r"--env flappy_thing:fly/Deep-v3$"):
        vector("Deep-v3")
    with pytest.raises(ConfigError, match=r"--env flappy_thing:Filled-8x8-v2$"):
        vector("Filled-8x8-v2")


class OldEnv:
    """An environment as gym before 0.26 has them; `Env` stands for that package's."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict({"far": spaces.Box(0, 9, (2,), np.float32)})
        self.action_space = spaces.Discrete(3)
        self.seeds: list[Any] = []

    def seed(self, seed: Any) -> None:
        self.seeds.append(seed)

    def reset(self) -> Any:
        self.steps = 0
        return {"far": np.zeros(2, np.float32)}

    def step(self, action: Any) -> Any:
        self.steps += 1
        cut = self.steps == 2 and len(self.seeds) == 1
        info = {"TimeLimit.truncated": True} if cut else {}
        return {"far": np.full(2, self.steps, np.float32)}, 1.5, self.steps == 2, info

    def close(self) -> None:
        self.seeds.append("closed")


def old_env() -> Any:
    package = type("Env", (), {"__module__": "gym.core"})
    return type("Old", (OldEnv, package), {})()


def test_an_environment_of_the_package_gym_is_one_of_gymnasium() -> None:
    envs = vector(f"{__name__}:old_env")
    env: Any = envs.row_env(0)
    assert (env.observation_space, env.action_space) == (
        spaces.Dict({"far": spaces.Box(0, 9, (2,), np.float32)}),
        spaces.Discrete(3),
    )
    assert env.seeds == [0], "seeded once, by the first reset"
    assert env.reset()[1] == {} and env.seeds == [0]
    assert env.step(1)[1:] == (1.5, False, False, {})
    assert env.step(1)[1:4] == (1.5, False, True)
    envs.close()
    assert env.seeds[-1] == "closed"


def test_an_id_that_a_module_registers_in_the_package_gym_is_made_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def make(env_id: str, disable_env_checker: bool | None = None) -> Any:
        assert (env_id, disable_env_checker) == ("Old-v0", True)
        return old_env()

    package: Any = ModuleType("gym")
    package.make, package.spec = make, {"Old-v0": None}.__getitem__
    monkeypatch.setitem(sys.modules, "gym", package)
    envs = vector(f"{__name__}:Old-v0")
    assert envs.spec.observations.keys() == {"far"}
    assert envs.spec.env_id == f"{__name__}:Old-v0"
    envs.close()
    with pytest.raises(ConfigError, match="registers no environment 'Old-v1'"):
        vector(f"{__name__}:Old-v1")


def test_the_spaces_of_the_package_gym_become_those_of_gymnasium() -> None:
    kinds = [
        spaces.Box(-1, 2, (3,), np.float64),
        spaces.Discrete(4, start=-1),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(3),
    ]
    for kind in kinds:
        of_gym: Any = type(type(kind).__name__, (), {})()
        of_gym.__dict__.update(vars(kind), shape=kind.shape, dtype=kind.dtype)
        assert space_of(of_gym, "X") == kind
    nested: Any = type("Tuple", (), {"spaces": [kinds[1]]})()
    assert space_of(nested, "X") == spaces.Tuple([kinds[1]])
    with pytest.raises(ConfigError, match=r"X: the space .* has no counterpart"):
        space_of(type("Graph", (), {})(), "X")


def test_a_module_that_registers_when_it_is_asked_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "asked_to_register.py").write_text(
        "import gymnasium as gym\n"
        "def register_envs():\n"
        "    gym.register('Asked-v0', 'gymnasium.envs.classic_control.cartpole:CartPoleEnv')\n"
        "    gym.register('Other-v0', 'asked_to_register:Nothing')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(gym, "registry", dict(gym.registry))
    monkeypatch.setattr("gymnasium.envs.registration.registry", gym.registry)
    envs = vector("asked_to_register:Asked-v0")
    assert envs.spec.observations["obs"].shape == (4,)
    envs.close()
    with pytest.raises(ConfigError, match=r"registers no environment 'Quite-v0', but Other-v0$"):
        vector("asked_to_register:Quite-v0")


def not_an_env() -> int:
    return 3


def not_a_vector(num_envs: int) -> int:
    return num_envs


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("ALE/Breakout-v5", "atari"),
        ("LunarLander-v3", "box2d"),
        ("MiniGrid-Empty-5x5-v0", "minigrid"),
        ("minigrid:MiniGrid-Empty-5x5-v0", "minigrid"),
    ],
)
def test_a_missing_library_is_answered_with_the_line_that_installs_it(
    name: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "minigrid", None)  # importing it fails
    with pytest.raises(ConfigError, match=rf'pip install "sampleforge\[{extra}\]"'):
        vector(name)


@pytest.mark.parametrize(
    ("name", "meant", "extra"),
    [
        ("BreakoutNoFrameskip-v4", "ALE/Breakout-v5", "atari"),
        ("doom_basic", "VizdoomBasic-v1", "vizdoom"),
    ],
)
def test_the_right_id_is_known_without_its_library_and_the_line_that_installs_it_follows(
    name: str, meant: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.delitem(gym.registry, name, raising=False)
    message = rf'Did you mean {meant}\? It needs .*pip install "sampleforge\[{extra}\]"$'
    with pytest.raises(ConfigError, match=message):
        vector(name)


def test_gymnasiums_own_word_on_a_missing_library_is_passed_on(registered: Register) -> None:
    def needy() -> None:
        raise gym.error.DependencyNotInstalled('run `pip install "gymnasium[other]"`')

    registered("Needy-v0", needy)
    with pytest.raises(ConfigError, match=r'Needy-v0.*pip install "gymnasium\[other\]"'):
        vector("Needy-v0")


def test_an_error_of_other_keywords_is_the_environments_own(registered: Register) -> None:
    def broken(size: int = 1) -> None:
        dict(size=size).update(1, wrong=2)  # type: ignore[call-overload]

    registered("Broken-v0", broken)
    with pytest.raises(ConfigError, match=r"^Broken-v0: unknown env_kwargs 'sise'; there is size$"):
        vector("Broken-v0", env_kwargs={"sise": 2})
    with pytest.raises(TypeError, match="not iterable"):
        vector("Broken-v0", env_kwargs={"size": 2})


MODULE = """
import gymnasium as gym
from tests.support.envs import CodeEnv, MaskedEnv as Twin

for name in ("Registers-v0", "Plain", "Twin"):
    gym.register(name, CodeEnv)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module that registers ids when it is imported; found through the working directory."""
    (tmp_path / "registers_ids.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "registers_ids"
    sys.modules.pop("registers_ids", None)
    for name in [name for name in gym.registry if f'"{name}"' in MODULE]:
        del gym.registry[name]


@pytest.mark.parametrize(
    ("name", "observation"),
    [
        ("Registers-v0", (4,)),
        ("Plain", (4,)),
        ("Twin", (5,)),  # an attribute of that name goes before an id without a version
        ("CodeEnv", (4,)),
    ],
)
def test_module_and_id_import_the_module_first(
    module: str, name: str, observation: tuple[int, ...]
) -> None:
    config = EnvConfig(env=f"{module}:{name}", max_episode_steps=3)
    envs = registry.make_vector(config, 2, [0, 1])
    assert envs.spec.observations["obs"].shape == observation
    assert envs.spec.max_episode_steps == 3
    envs.close()
    env = registry.make_single(config)
    assert env.observation_space.shape == observation
    env.close()


def test_an_id_of_a_bundled_family_may_name_its_module_too() -> None:
    pytest.importorskip("minigrid")
    rows = [
        registry.make_vector(EnvConfig(env=name), 1, [0])
        for name in ("minigrid:MiniGrid-Empty-5x5-v0", "MiniGrid-Empty-5x5-v0")
    ]
    assert rows[0].spec == rows[1].spec
    for envs in rows:
        envs.close()


def test_ids_of_gymnasiums_entry_points_are_found(
    module: str,
    registered: Register,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An installed package that registers its ids in a function, and one that fails to, in whose
    namespace later ids are not."""
    (tmp_path / "plugged.py").write_text(
        "def register():\n"
        "    import gymnasium as gym\n"
        "    gym.register('Counter-v1', 'tests.support.envs:CodeEnv')\n"
    )
    metadata = tmp_path / "plugged-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[gymnasium.envs]\nspace = plugged:register\n__root__ = plugged:register\n"
        "broken = plugged:nothing\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    registry.load_plugins.cache_clear()
    try:
        for name in ("space/Counter-v1", "Counter-v1"):
            vector(name).close()
            assert name in registry.known_ids()
        assert "plugged:nothing of the entry points gymnasium.envs failed" in caplog.text
        registered("Later-v0", not_an_env)
        assert "Later-v0" in gym.registry
    finally:
        registry.load_plugins.cache_clear()


def test_a_family_whose_simulator_is_broken_is_left_out_with_the_reason(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One whose module cannot be imported, and one whose simulator fails when it is asked."""
    (tmp_path / "half.py").write_text(
        "from sampleforge.env.family import Family\n"
        "def ids():\n"
        "    raise ImportError('libhalf.so: undefined symbol')\n"
        "def claims(env):\n"
        "    return env.startswith('half/')\n"
        "FAMILY = Family('half', claims, ids, None, None, 'half', 'half')\n"
    )
    (tmp_path / "broken.py").write_text("import not_installed_anywhere\n")
    metadata = tmp_path / "half-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: half\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[sampleforge.envs]\nbroken = broken\nhalf = half\n")
    monkeypatch.syspath_prepend(tmp_path)
    registry.load_families.cache_clear()
    registry.families.cache_clear()
    try:
        assert main(["envs", "CartPole"]) == 0
        found = capsys.readouterr()
        assert "CartPole-v1" in found.out
        assert "the package half fails: ImportError('libhalf.so: undefined symbol')" in found.err
        assert "broken of the entry points sampleforge.envs failed" in caplog.text
        assert "CartPole-v1" in registry.known_ids()
        with pytest.raises(ConfigError, match=r"family half are not known.*undefined symbol"):
            vector("half/One-v0")
    finally:
        registry.load_families.cache_clear()
        registry.families.cache_clear()


def test_a_module_that_fails_to_import_another_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_env_module.py").write_text("import not_installed_anywhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        vector("broken_env_module:make")


def test_unknown_backends_are_refused() -> None:
    with pytest.raises(ConfigError, match="no vector env of its own"):
        vector("Acrobot-v1", env_backend="vector")
    with pytest.raises(ConfigError, match="--env-backend single does not reach"):
        vector("tests.support.envs:CountingVectorEnv", env_backend="single")


def test_single_environments_have_the_limit() -> None:
    config = EnvConfig(
        env="tests.support.envs:CodeEnv", max_episode_steps=2, env_kwargs={"length": 9}
    )
    env = registry.make_single(config)
    env.reset(seed=0)
    assert [env.step(0)[3] for _ in range(2)] == [False, True]
    env.close()


def test_row_seeds_differ_and_repeat() -> None:
    seeds = {
        (worker, split, resumes): tuple(row_seeds(7, worker, split, 16, resumes))
        for worker in range(3)
        for split in range(2)
        for resumes in range(2)
    }
    assert len({seed for row in seeds.values() for seed in row}) == 3 * 2 * 2 * 16
    assert tuple(row_seeds(7, 2, 1, 16, 1)) == seeds[2, 1, 1]
    assert row_seeds(8, 2, 1, 16, 1) != row_seeds(7, 2, 1, 16, 1)
    assert all(0 <= seed < 2**31 for row in seeds.values() for seed in row)


def test_files_that_a_simulator_drops_go_with_the_scratch_directory_and_imports_still_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    (tmp_path / "my_scratch_env.py").write_text("from tests.support.envs import CodeEnv as make\n")
    with scratch_directory() as folder:
        assert Path.cwd() == folder.resolve() != tmp_path
        Path("litter").touch()
        factory, _ = registry.resolve(EnvConfig(env="my_scratch_env:make"))
        assert factory is not None and factory.__name__ == "CodeEnv"
    assert not folder.exists()
    assert Path.cwd() == tmp_path
    assert os.listdir(tmp_path).count("litter") == 0
