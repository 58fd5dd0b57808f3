"""Stable-Baselines3 with its own defaults on a gymnasium id, then 100 greedy episodes, as JSON.

Run by `benchmarks/defaults.py` with the interpreter of an environment that has stable-baselines3;
it imports nothing of SampleForge. Wrappers: gymnasium's Monitor alone; MinAtar's planes and
MiniGrid's view (minigrid's ImgObsWrapper) are flattened for its MLP.
"""

import argparse
import csv
import importlib
import json
import tempfile
import time
from typing import Any

import gymnasium as gym
import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor


def make(env: str, monitor: str | None = None) -> Any:
    if env.startswith("MinAtar/"):
        module = importlib.import_module("minatar.gym")
        if env not in gym.registry:
            module.register_envs()
        return Monitor(gym.wrappers.FlattenObservation(gym.make(env)), monitor)
    if env.startswith("MiniGrid-"):
        wrappers = importlib.import_module("minigrid.wrappers")
        view = wrappers.ImgObsWrapper(gym.make(env))
        return Monitor(gym.wrappers.FlattenObservation(view), monitor)
    return Monitor(gym.make(env), monitor)


def episodes(path: str) -> list[tuple[int, float]]:
    """Env steps at the end of each training episode, and its return."""
    found, steps = [], 0
    with open(path) as file:
        next(file)
        for row in csv.DictReader(file):
            steps += int(row["l"])
            found.append((steps, float(row["r"])))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", required=True)
    parser.add_argument("--algo", choices=["PPO", "DQN"], default="PPO")
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        monitor = f"{folder}/train"
        started, cpu = time.perf_counter(), time.process_time()
        training = make(args.env, monitor)
        kind = {"PPO": PPO, "DQN": DQN}[args.algo]
        model = kind("MlpPolicy", training, seed=args.seed, device="cpu").learn(args.steps)
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        training.close()
        curve = episodes(f"{monitor}.monitor.csv")
    returns, _ = evaluate_policy(
        model, make(args.env), n_eval_episodes=100, deterministic=True, return_episode_rewards=True
    )
    result = {"seconds": seconds, "cpu_seconds": cpu, "returns": returns, "episodes": curve}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
