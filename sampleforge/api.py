"""SampleForge from Python: train, a trainer to step by hand, a trained policy to act with."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sampleforge import spec as specs
from sampleforge.benchmark import run_benchmark
from sampleforge.config import ConfigError
from sampleforge.env.adapter import to_env
from sampleforge.env.probe import probe
from sampleforge.env.scratch import make_cwd_importable
from sampleforge.folder.checkpoint import CheckpointStore
from sampleforge.folder.resume import model_tensors
from sampleforge.folder.run_folder import RunFolder
from sampleforge.folder.trust import Trust, imports_code
from sampleforge.models.actor_critic import ActorCritic
from sampleforge.models.q_network import QNetwork
from sampleforge.models.registry import resolve_encoder
from sampleforge.session.callback import Callback
from sampleforge.session.session import Session
from sampleforge.topologies.config import ALGOS, AnyConfig
from sampleforge.topologies.registry import topology


@dataclass(frozen=True)
class Result:
    """A finished run: its folder, and what summary.json says."""

    run_dir: Path
    summary: dict[str, Any]


def train(config: AnyConfig, callbacks: Sequence[Callback] = ()) -> Result:
    """Run ``config`` to its stop condition, or measure it where it says ``benchmark``.

    Raises ConfigError for what cannot run, and what a worker died of as WorkerDied. Ctrl-C ends
    the run in order, with a checkpoint, and then raises KeyboardInterrupt.
    """
    session = Session(config, callbacks)
    session.open()
    if config.benchmark:
        run_benchmark(session)
    else:
        with session:
            for _ in session.reports():
                pass
    return Result(session.folder.path, json.loads(session.folder.summary_file.read_text()))


class Trainer:
    """Training step by step, for notebooks and sweeps::

    with Trainer(config) as trainer:
        for report in trainer:      # a dict of scalars per report interval, and per evaluation
            ...
        trainer.save()
    """

    def __init__(self, config: AnyConfig, callbacks: Sequence[Callback] = ()) -> None:
        self.session = Session(config, callbacks)
        self._policy: LoadedPolicy | None = None

    def __enter__(self) -> Trainer:
        self.session.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.session.__exit__(*error)

    def __iter__(self) -> Iterator[dict[str, float]]:
        return self.session.reports()

    @property
    def run_dir(self) -> Path:
        return self.session.folder.path

    def save(self) -> None:
        """Write a checkpoint now."""
        self.session.save()

    def compute_action(self, obs: Any) -> Any:
        """The most likely action for one observation, by the newest weights. For a recurrent model
        use `load_policy`, which carries the state."""
        if self._policy is None:
            self._policy = LoadedPolicy(self.session.new_model(), self.session.spec)
        self.session.graph.group.weights.read(self._policy.model.state_dict())
        return self._policy.act(obs)[0]


class LoadedPolicy:
    """A policy that acts on single observations of its environment."""

    def __init__(self, model: ActorCritic | QNetwork, spec: specs.EnvSpec) -> None:
        self.model = model.eval()
        self.spec = spec

    @torch.inference_mode()
    def act(
        self, obs: Any, state: torch.Tensor | None = None, *, stochastic: bool = False
    ) -> tuple[Any, torch.Tensor]:
        """(action, next recurrent state) for one observation as the environment gives it.

        ``state`` is the state of the step before; None begins an episode. The action is the most
        likely one, or with ``stochastic`` a sample; structured as flat leaves if the action space
        is a Dict or a Tuple.
        """
        leaves = _leaves_of(obs, self.spec)
        first = torch.tensor([state is None])
        if state is None:
            state = torch.zeros(1, self.model.state_size)
        output = self.model.step(leaves, state, first)
        distribution = self.model.distribution(output.parameters, leaves)
        chosen = distribution.sample() if stochastic else distribution.mode()
        actions = {
            name: to_env(self.spec.actions[name])(leaf.numpy())[0] for name, leaf in chosen.items()
        }
        action = actions[specs.ACTION] if set(actions) == {specs.ACTION} else actions
        return action, output.state


def _leaves_of(obs: Any, spec: specs.EnvSpec) -> dict[str, torch.Tensor]:
    """One observation as a batch of one per leaf. Raises ValueError for one of another shape."""
    found: dict[str, Any] = {}

    def walk(value: Any, path: str) -> None:
        if isinstance(value, dict):
            for key, child in value.items():
                walk(child, f"{path}.{key}" if path else str(key))
        elif isinstance(value, tuple):
            for i, child in enumerate(value):
                walk(child, f"{path}.{i}" if path else str(i))
        else:
            found[path or specs.OBSERVATION] = value

    walk(obs, "")
    leaves = {}
    for name, leaf in spec.observations.items():
        if name not in found:
            raise ValueError(f"the observation has no leaf {name!r}; it has {sorted(found)}")
        array = np.asarray(found[name], dtype=leaf.dtype)
        if array.shape != leaf.shape:
            raise ValueError(f"observation leaf {name!r} is {array.shape}, expected {leaf.shape}")
        leaves[name] = torch.from_numpy(array).unsqueeze(0)
    return leaves


def load_policy(run_dir: str | Path, which: str = "latest", *, trust: bool = False) -> LoadedPolicy:
    """The policy of a run folder's latest or best checkpoint.

    Its environment is constructed once, in a process of its own, to learn the spaces. Raises
    ConfigError if the folder has no checkpoint, and without ``trust`` also if it names code that
    would be imported: an environment of the form package.module:factory, arguments of it, or an
    encoder. Such a folder can run any code: set ``trust`` only for one whose origin you know.
    """
    folder = RunFolder.existing(run_dir)
    config = read_config(folder, Trust(everything=trust))
    if imports_code(config):
        make_cwd_importable()
    model, spec, _ = load_model(folder, config, which)
    return LoadedPolicy(model, spec)


def read_config(folder: RunFolder, trust: Trust) -> AnyConfig:
    """The config of a run, whatever its algorithm. Raises ConfigError if it does not fit, or names
    code that is not to be trusted."""
    algo = folder.algo
    if algo not in ALGOS:
        raise ConfigError(
            f"the run in {folder.path} is of algorithm {algo!r}, which this version does not have"
        )
    return folder.read_config(ALGOS[algo], trust)


def load_model(
    folder: RunFolder, config: AnyConfig, which: str = "latest"
) -> tuple[ActorCritic | QNetwork, specs.EnvSpec, dict[str, Any]]:
    """(model with its weights, spec, the checkpoint's plain state)."""
    store = CheckpointStore(folder.checkpoints, config.keep_checkpoints)
    found = store.load("best" if which == "best" else "latest", log=print)
    if found is None:
        raise ConfigError(f"{folder.path} has no checkpoint yet; train it first")
    spec = probe(config)
    config = dataclasses.replace(config, model=resolve_encoder(config.model, spec.observations))
    model = topology(config).model_maker(config, spec, 0)()
    model.load_state_dict(model_tensors(found[0].tensors))
    return model, spec, found[0].state
