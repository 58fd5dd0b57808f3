"""Train in a loop of your own, as in a notebook: look at each report, stop, save, act.

    python examples/step_by_step.py

A `Trainer` starts the workers when its ``with`` block is entered, and ends them, after a
checkpoint, when the block is left. Between two reports the workers train on their own.
"""

from __future__ import annotations

import gymnasium as gym

import sampleforge as sf

ENOUGH = 150.0
"""Mean return at which this training stops."""


def main() -> None:
    config = sf.AppoConfig(
        env="CartPole-v1",
        train_for_env_steps=200_000,  # at the latest
        report_interval=1.0,
        seed=1,
    )
    with sf.Trainer(config) as trainer:
        for report in trainer:  # a dict of numbers; docs/metrics.md explains each
            mean = report.get("return_mean", 0.0)  # missing until an episode has ended
            print(f"{report['env_steps']:9,.0f} env steps, mean return {mean:6.1f}")
            if mean >= ENOUGH:
                break
        trainer.save()

        env = gym.make("CartPole-v1")
        obs, _ = env.reset(seed=7)
        length, ended = 0, False
        while not ended:
            obs, _, terminated, truncated, _ = env.step(trainer.compute_action(obs))
            length, ended = length + 1, terminated or truncated
        print(f"one episode with the newest weights: {length} steps")
    print(f"the run is in {trainer.run_dir}; training goes on from there with run_dir and resume")


if __name__ == "__main__":  # workers are processes that import this file
    main()
