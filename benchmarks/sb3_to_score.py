"""Stable-Baselines3's PPO until its greedy evaluations reach a score, as one JSON line per
evaluation.

Run by `benchmarks/time_to_score.py` with the interpreter of an environment that has
stable-baselines3; it imports nothing of SampleForge. ``--settings default`` are SB3's own, with one
environment (images: eight); ``cleanrl`` are those of CleanRL's ``ppo.py``, ``ppo_atari.py`` and
``ppo_continuous_action.py``, with its number of environments and its wrappers. The clock stops
during evaluations.
"""

import argparse
import importlib
import json
import time
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecFrameStack
from stable_baselines3.common.vec_env.vec_normalize import VecNormalize

CLEANRL_DISCRETE = {"rows": 4, "steps": 128, "batch": 128, "epochs": 4, "rate": 2.5e-4}
CLEANRL = {
    "CartPole-v1": {**CLEANRL_DISCRETE, "anneal_over": 500_000},
    "MinAtar/Breakout": {**CLEANRL_DISCRETE, "rows": 8, "batch": 256, "anneal_over": 10_000_000},
    "ALE/Pong-v5": {
        **CLEANRL_DISCRETE,
        **{"rows": 8, "batch": 256, "clip": 0.1, "anneal_over": 10_000_000},
    },
    "HalfCheetah-v5": {
        **{"rows": 1, "steps": 2048, "batch": 64, "epochs": 10, "rate": 3e-4, "entropy": 0.0},
        **{"anneal_over": 1_000_000, "normalise": True},
    },
}


def single(env: str) -> Any:
    if env.startswith("MinAtar/"):
        module = importlib.import_module("minatar.gym")
        if "MinAtar/Breakout-v1" not in gym.registry:
            module.register_envs()
        return Monitor(gym.wrappers.FlattenObservation(gym.make(f"{env}-v1")))
    return Monitor(gym.make(env))


def make(env: str, rows: int, seed: int) -> VecEnv:
    if not env.startswith("ALE/"):
        vector = DummyVecEnv([lambda: single(env)] * rows)
        vector.seed(seed)
        return vector
    gym.register_envs(importlib.import_module("ale_py"))
    kind: Any = SubprocVecEnv if rows > 1 else DummyVecEnv
    options = {"vec_env_kwargs": {"start_method": "fork"}} if rows > 1 else {}
    kwargs = {"frameskip": 1, "repeat_action_probability": 0.0}
    made = make_atari_env(
        env, n_envs=rows, seed=seed, vec_env_cls=kind, env_kwargs=kwargs, **options
    )
    return VecFrameStack(made, 4)


def model_of(settings: dict[str, Any], training: VecEnv, image: bool, seed: int) -> PPO:
    policy = "CnnPolicy" if image else "MlpPolicy"
    if not settings:
        return PPO(policy, training, seed=seed, device="cpu")
    rate, over = settings["rate"], settings["anneal_over"]
    return PPO(
        policy,
        training,
        seed=seed,
        device="cpu",
        n_steps=settings["steps"],
        batch_size=settings["batch"],
        n_epochs=settings["epochs"],
        learning_rate=lambda left: rate * max(0.0, 1.0 - TOTAL * (1.0 - left) / over),
        ent_coef=settings.get("entropy", 0.01),
        clip_range=settings.get("clip", 0.2),
        clip_range_vf=settings.get("clip", 0.2),
    )


TOTAL = 2**40
"""The number of steps given to SB3; the callback ends the training."""


class UntilScore(BaseCallback):  # type: ignore[misc]
    """Evaluates every ``every`` env steps, and ends the training at the target or the limit."""

    def __init__(self, args: argparse.Namespace, evaluation: VecEnv) -> None:
        super().__init__()
        self._args = args
        self._evaluation = evaluation
        self._next = args.every
        self._paused = 0.0
        self._paused_cpu = 0.0

    def _on_step(self) -> bool:
        seconds = time.time() - self._args.started - self._paused
        if self.num_timesteps < self._next:
            return bool(seconds < self._args.limit)
        self._next += self._args.every
        begun, cpu = time.time(), time.process_time()
        normalised = self.model.get_vec_normalize_env()
        if normalised is not None:
            assert isinstance(self._evaluation, VecNormalize)
            self._evaluation.obs_rms = normalised.obs_rms
        returns, _ = evaluate_policy(
            self.model,
            self._evaluation,
            n_eval_episodes=self._args.episodes,
            deterministic=not self._args.stochastic,
            return_episode_rewards=True,
        )
        mean = float(np.mean(returns))
        used = cpu - self._paused_cpu
        point = {"s": seconds, "cpu": used, "steps": self.num_timesteps, "mean": mean}
        print(json.dumps(point), flush=True)
        self._paused += time.time() - begun
        self._paused_cpu += time.process_time() - cpu
        return bool(mean < self._args.target and seconds < self._args.limit)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", required=True, choices=list(CLEANRL))
    parser.add_argument("--settings", choices=["default", "cleanrl"], required=True)
    parser.add_argument("--target", type=float, required=True)
    parser.add_argument("--limit", type=float, required=True, help="seconds on the clock")
    parser.add_argument("--every", type=int, required=True, help="env steps between evaluations")
    parser.add_argument("--episodes", type=int, default=20, help="of an evaluation")
    parser.add_argument("--stochastic", action="store_true", help="sample actions to evaluate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--started", type=float, default=time.time(), help="time at which the clock began"
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    settings: dict[str, Any] = CLEANRL[args.env] if args.settings == "cleanrl" else {}
    image = args.env.startswith("ALE/")
    training = make(args.env, settings.get("rows", 8 if image else 1), args.seed)
    evaluation = make(args.env, 1 if image else args.episodes, args.seed + 10_000)
    if settings.get("normalise"):
        training = VecNormalize(training, gamma=0.99)
        evaluation = VecNormalize(evaluation, training=False, norm_reward=False)
    model = model_of(settings, training, image, args.seed)
    model.learn(TOTAL, callback=UntilScore(args, evaluation))
    training.close()
    evaluation.close()


if __name__ == "__main__":
    main()
