"""Play episodes with an exported policy, without SampleForge: onnxruntime and gymnasium suffice.

    sampleforge train appo --env CartPole-v1 --run-dir runs/cartpole --train-for-env-steps 100000
    sampleforge export runs/cartpole --format onnx --out policy.onnx
    python examples/play_onnx.py policy.onnx CartPole-v1

It plays in environments whose observation and action are one array each.
"""

from __future__ import annotations

import sys

import gymnasium as gym
import numpy as np
import onnxruntime


def main(file: str = "policy.onnx", env_id: str = "CartPole-v1", episodes: str = "10") -> None:
    policy = onnxruntime.InferenceSession(file)
    shapes = {column.name: column.shape for column in policy.get_inputs()}
    names = [column.name for column in policy.get_outputs()]
    env, returns = gym.make(env_id), np.zeros(int(episodes))
    for episode in range(int(episodes)):
        (obs, _), ended = env.reset(seed=episode), False
        state = np.zeros((1, shapes["state"][1]), np.float32) if "state" in shapes else None
        while not ended:
            inputs = {"obs": np.asarray(obs)[None]} | ({} if state is None else {"state": state})
            outputs = dict(zip(names, policy.run(None, inputs), strict=True))
            state = outputs.get("next_state")
            obs, reward, terminated, truncated, _ = env.step(outputs["action"][0])
            returns[episode] += float(reward)
            ended = terminated or truncated
    print(f"mean return of {episodes} episodes: {returns.mean():.1f}")


if __name__ == "__main__":
    main(*sys.argv[1:4])
