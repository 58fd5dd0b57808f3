"""Take part in a training with a callback of your own: keep the longest episode, and stop early.

    python examples/custom_callback.py

The session calls the callback's methods in this process, each time it has read the workers'
results. The workers go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sampleforge as sf

ENOUGH = 150.0
"""Mean return of the last 100 episodes at which the training stops."""


class StopEarly(sf.Callback):
    """Stops the session once the mean return is high enough, and keeps the longest episode."""

    def __init__(self) -> None:
        self.longest = 0
        self.reached = 0.0

    def on_episode_record(self, session: sf.Session, record: Any) -> None:
        self.longest = max(self.longest, record.length)

    def on_report(self, session: sf.Session, report: Mapping[str, float]) -> None:
        self.reached = report.get("return_mean", 0.0)  # missing until an episode has ended
        print(f"{report['env_steps']:9,.0f} env steps, mean return {self.reached:6.1f}")
        if self.reached >= ENOUGH:
            session.stop()  # in order, with a checkpoint

    def on_checkpoint(self, session: sf.Session, env_steps: int) -> None:
        print(f"a checkpoint of {env_steps:,} env steps was written")

    def on_message(self, session: sf.Session, message: sf.Message) -> None:
        if message.level in ("warning", "alert"):
            print(f"{message.source}: {message.text}")


def main() -> None:
    config = sf.AppoConfig(
        env="CartPole-v1",
        train_for_env_steps=200_000,  # at the latest
        report_interval=1.0,
        seed=1,
    )
    callback = StopEarly()
    result = sf.train(config, callbacks=[callback])
    print(f"the longest episode had {callback.longest} steps")
    print(f"stopped at a mean return of {callback.reached:.1f}; the run is in {result.run_dir}")


if __name__ == "__main__":  # workers are processes that import this file
    main()
