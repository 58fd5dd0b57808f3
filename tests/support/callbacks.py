"""Callbacks for tests, which workers can import. `SEEN` is what those of serial runs have noted:
their copies are in this process."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import sampleforge as sf
from tests.support.envs import code_reward

SEEN: list[tuple[Any, ...]] = []


class Warnings(sf.Callback):
    """Has the warnings of a session."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def on_message(self, session: sf.Session, message: sf.Message) -> None:
        if message.level == "warning":
            self.warnings.append(message.text)


class Auditor(sf.Callback):
    """Checks on CodeEnv that every hook of an episode is told what belongs to it, and notes the
    ends: (actor, split, row, seat, return, length, counted)."""

    def on_episode_start(self, episode: sf.EpisodeHandle) -> None:
        code = episode.obs["obs"]
        assert episode.length == 0 and episode.ret == 0.0 and not episode.action
        assert code[2] == 0 or episode.agent, "an agent may join late"
        assert not episode.user_data and not episode.custom_metrics
        episode.user_data["who"] = code[:2].tolist()
        episode.user_data["joined"] = code[2]
        episode.user_data["rewards"] = []

    def on_episode_step(self, episode: sf.EpisodeHandle) -> None:
        code = episode.obs["obs"]
        assert code[:2].tolist() == episode.user_data["who"]
        assert code[2] == episode.user_data["joined"] + episode.length
        assert episode.reward == code_reward(*code[:3]) + 1000 * episode.seat
        assert not code.flags.writeable
        assert episode.agent or int(episode.action["action"]) == code[3]
        episode.user_data["rewards"].append(episode.reward)
        episode.custom_metrics["steps"] = episode.length

    def on_episode_end(self, episode: sf.EpisodeHandle) -> None:
        assert episode.length == len(episode.user_data["rewards"])
        assert episode.ret == sum(episode.user_data["rewards"])
        assert episode.terminated or episode.truncated
        place = episode.actor, episode.split, episode.row, episode.seat
        SEEN.append(("end", *place, episode.ret, episode.length, episode.counted))


class Inspector(sf.Callback):
    """Checks that the arrays of a rollout fit together, and notes ("rollout", number of its
    steps that it has checked, policy, overlap)."""

    def on_rollout_end(self, rollout: sf.RolloutView) -> None:
        obs = rollout.obs["obs"]
        assert obs.shape[:2] == (rollout.length + 1, rollout.reward.shape[1])
        plain = rollout.valid & ~rollout.first[1:]
        told = code_reward(*np.moveaxis(obs[1:, :, :3], -1, 0)) + 1000 * rollout.seat
        assert (rollout.reward[plain] == told[plain]).all()
        assert (rollout.version >= 0).all()
        arrays = [obs, rollout.reward, rollout.valid, *rollout.actions.values()]
        assert not any(array.flags.writeable for array in [*arrays, *rollout.extras.values()])
        SEEN.append(("rollout", int(plain.sum()), rollout.policy, rollout.overlap))

    def on_learner_update(self, update: sf.LearnerUpdate) -> None:
        assert update.metrics["loss"] == update.metrics["loss"]
        assert next(update.model.parameters()).isfinite().all()
        update.custom_metrics["version"] = update.version
        SEEN.append(("update", update.version, update.policy))


class Failing(sf.Callback):
    """Raises ValueError("deliberate") in the hook that `hook` names."""

    hook = ""

    def _fail(self, hook: str) -> None:
        if hook == self.hook:
            raise ValueError("deliberate")

    def __init__(self) -> None:
        self.hook = type(self).hook

    def on_wire(self, session: sf.Session) -> None:
        self._fail("on_wire")

    def on_start(self, session: sf.Session) -> None:
        self._fail("on_start")

    def on_episode_record(self, session: sf.Session, record: Any) -> None:
        self._fail("on_episode_record")

    def extend_report(self, session: sf.Session, report: dict[str, float]) -> None:
        self._fail("extend_report")

    def on_stop(self, session: sf.Session) -> None:
        self._fail("on_stop")

    def on_end(self, session: sf.Session, summary: Mapping[str, Any]) -> None:
        self._fail("on_end")

    def on_episode_start(self, episode: sf.EpisodeHandle) -> None:
        self._fail("on_episode_start")

    def on_episode_step(self, episode: sf.EpisodeHandle) -> None:
        self._fail("on_episode_step")

    def on_episode_end(self, episode: sf.EpisodeHandle) -> None:
        self._fail("on_episode_end")

    def on_rollout_end(self, rollout: sf.RolloutView) -> None:
        self._fail("on_rollout_end")

    def on_learner_update(self, update: sf.LearnerUpdate) -> None:
        self._fail("on_learner_update")


class FailingAtEnds(Failing):
    """Raises in the actor, at the end of an episode."""

    hook = "on_episode_end"


class Counting(sf.Callback):
    """Sets task 7 after the first update. Reports of each episode, on TaskEnv, its task, a number
    that each copy of the callback draws (``copy``), and the task of the first episode that this
    copy has seen (``first_task``)."""

    def __init__(self) -> None:
        self.copy = 0.0
        self.first_task = 0

    def on_report(self, session: sf.Session, report: Mapping[str, float]) -> None:
        if report["updates"] and session.task is None:
            session.set_task(7)

    def on_episode_end(self, episode: sf.EpisodeHandle) -> None:
        if not self.copy:
            self.copy, self.first_task = random.random(), episode.env.task
        episode.custom_metrics["copy"] = self.copy
        episode.custom_metrics["first_task"] = self.first_task
        episode.custom_metrics["task"] = episode.env.task


class Later(sf.Callback):
    """Takes part in a resumed run of `Counting`: notes the task that it begins with (``tasks``) and
    those of its episodes, and sets the evaluator's."""

    def __init__(self) -> None:
        self.tasks: list[Any] = []

    def on_wire(self, session: sf.Session) -> None:
        self.tasks.append(session.task)
        session.set_evaluation_task(3)

    def on_episode_start(self, episode: sf.EpisodeHandle) -> None:
        SEEN.append(("task", episode.env.task))


class Announcing(sf.Callback):
    """Says in a message that it takes part."""

    def on_start(self, session: sf.Session) -> None:
        session.message(f"{type(self).__name__} takes part")


class AnnouncingToo(Announcing):
    """Another one."""


class HangsInTheLearner(sf.Callback):
    """Stands still in the first update for which ``mark`` is not there, a file that it makes."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def on_learner_update(self, update: sf.LearnerUpdate) -> None:
        if update.version > 3 and not self.mark.exists():
            self.mark.touch()
            while True:
                time.sleep(0.1)


class Assigning(sf.Callback):
    """Changes the reward of a step, which would have no effect."""

    def on_episode_step(self, episode: sf.EpisodeHandle) -> None:
        episode.reward = 1.0  # type: ignore[misc]
