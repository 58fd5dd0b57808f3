"""`sampleforge estimate`: from a run folder and a dataset to estimates that its last line holds."""

from __future__ import annotations

import dataclasses
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sampleforge.api import load_policy
from sampleforge.cli import main
from sampleforge.data.dataset import StoredEpisode
from sampleforge.loaded_policy import LoadedPolicy
from sampleforge.spec import EnvSpec
from sampleforge.tools.estimate.fitted_q import cross_fitted_q
from tests.support.recorded import recorded, write_dataset
from tests.support.serial_runs import run_serially

FAST = "--no-doubly-robust"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("estimate") / "run"
    run_serially(folder, 1, train_for_env_steps=500)
    return folder


@pytest.fixture(scope="module")
def data(run: Path) -> Path:
    """Episodes of 5 random steps whose behaviour is the policy's own, but for the actions of one
    episode, which it never takes as often as they were taken."""
    policy = load_policy(run)
    episodes = [
        dataclasses.replace(each, log_probs=log_probs(policy, each))
        for each in recorded_in(policy, 60)
    ]
    episodes.append(dataclasses.replace(episodes[0], begins=False))
    episodes.append(dataclasses.replace(episodes[0], shortened=True))
    return write_dataset(run.parent / "data", policy.spec, episodes)


def recorded_in(policy: LoadedPolicy, count: int) -> list[StoredEpisode]:
    rng = np.random.default_rng(0)
    return [
        dataclasses.replace(
            episode, observations={"obs": rng.normal(0, 0.1, (6, 4)).astype(np.float32)}
        )
        for episode in recorded([5] * count, policy.spec.actions)
    ]


def log_probs(policy: LoadedPolicy, episode: StoredEpisode) -> np.ndarray[Any, Any]:
    """Log-probabilities under the policy itself."""
    obs = {"obs": torch.from_numpy(episode.observations["obs"][:-1])}
    with torch.no_grad():
        output = policy.model.step(obs, torch.zeros(5, 0), torch.ones(5, dtype=torch.bool))
        distribution = policy.model.distribution(output.parameters, obs)
        taken = {"action": torch.from_numpy(episode.actions["action"])}
        return distribution.log_prob(taken).numpy()  # type: ignore[union-attr]


@pytest.fixture
def rough_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Q-function is fitted, but only roughly: for tests of what it is fitted to, and of what is
    made of its values."""
    rough = partial(cross_fitted_q, iterations=2, updates=5)
    monkeypatch.setattr("sampleforge.tools.estimate.estimation.cross_fitted_q", rough)


@pytest.mark.long
@pytest.mark.usefixtures("rough_fits")
def test_on_the_policys_own_episodes_every_estimate_but_one_is_their_mean(
    run: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "estimates.png"
    assert main(["estimate", str(run), str(data), "--out", str(out)]) == 0
    printed = capsys.readouterr()
    *table, last = printed.out.splitlines()
    result = json.loads(last)
    for name in ("is", "wis", "pdis"):
        assert result[name]["value"] == pytest.approx(result["behaviour_return"], rel=1e-4)
        assert result[name]["low"] < result[name]["value"] < result[name]["high"]
    assert result["dr"]["low"] < result["behaviour_return"] < result["dr"]["high"]
    assert result["episodes"] == 60 and result["episodes_left_out"] == 2
    assert result["episodes_effective"] == pytest.approx(60, rel=1e-4)
    assert "2 episodes were left out" in printed.err
    assert any("doubly robust" in line and "60.0 of 60" in line for line in table)
    assert out.read_bytes().startswith(b"\x89PNG")


def test_json_alone_a_discount_and_clipped_ratios(
    run: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [
        "--json",
        "--no-doubly-robust",
        "--gamma",
        "0.5",
        "--max-ratio",
        "1.0",
        "--level",
        "0.8",
    ]
    assert main(["estimate", str(run), str(data), *flags]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    result = json.loads(line)
    assert "dr" not in result and result["gamma"] == 0.5 and result["level"] == 0.8
    rewards = np.stack([e.rewards for e in recorded_in(load_policy(run), 60)])
    expected = (rewards * 0.5 ** np.arange(5)).sum(1).mean()
    assert result["behaviour_return"] == pytest.approx(expected, rel=1e-5)
    assert any("clipped to 1" in text for text in result["warnings"])


@pytest.mark.long
def test_a_greedy_policy_says_so_where_the_episodes_do_not_fit_it(
    run: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["estimate", str(run), str(data), "--no-stochastic", "--no-doubly-robust"]) in (
        0,
        2,
    )
    printed = capsys.readouterr()
    assert "never takes" in printed.err or "count as" in printed.err


def test_data_without_log_probabilities_are_refused_with_the_reason(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = load_policy(run)
    bare = [dataclasses.replace(each, log_probs=None) for each in recorded_in(policy, 3)]
    folder = write_dataset(tmp_path / "bare", policy.spec, bare)
    assert main(["estimate", str(run), str(folder)]) == 2
    assert "no log-probabilities of its actions: they were not recorded" in capsys.readouterr().err
    metadata = folder / "data" / "metadata.json"
    plain = json.loads(metadata.read_text())
    del plain["sampleforge"]
    metadata.write_text(json.dumps(plain))
    assert main(["estimate", str(run), str(folder)]) == 2
    assert "it is from elsewhere" in capsys.readouterr().err


def estimated(
    run: Path, data: Path, capsys: pytest.CaptureFixture[str], *flags: str
) -> tuple[Any, str]:
    """The JSON object that the command prints, and its warnings."""
    assert main(["estimate", str(run), str(data), "--json", *flags]) == 0
    printed = capsys.readouterr()
    return json.loads(printed.out), printed.err


def independent(episodes: list[StoredEpisode], value: bool) -> list[StoredEpisode]:
    return [dataclasses.replace(e, independent=np.full(len(e), value)) for e in episodes]


@pytest.mark.long
@pytest.mark.usefixtures("rough_fits")
def test_episodes_that_were_not_drawn_independently_are_left_out_and_said(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One step is enough. The Q-function still learns from them."""
    policy = load_policy(run)
    good = independent(recorded_in(policy, 40), True)
    bad = [
        dataclasses.replace(e, rewards=e.rewards + 100, independent=np.arange(5) != 3)
        for e in good[:15]
    ]
    expected, said = estimated(run, write_dataset(tmp_path / "good", policy.spec, good), capsys)
    assert "independently" not in said and expected["episodes_not_independent"] == 0
    both = write_dataset(tmp_path / "both", policy.spec, [*bad[:7], *good, *bad[7:]])
    result, said = estimated(run, both, capsys)
    for name in ("is", "wis", "pdis"):
        assert result[name] == expected[name]
    assert result["dr"] != expected["dr"] and result["behaviour_return"] < 50
    assert result["episodes"] == 40 and result["episodes_not_independent"] == 15
    assert result["episodes_left_out"] == 0
    assert "15 episodes were left out, because their actions were not drawn independently" in said
    assert "40 are left; the Q-function is fitted to them all the same" in said
    none = write_dataset(tmp_path / "none", policy.spec, [*bad, good[0]])
    assert main(["estimate", str(run), str(none)]) == 2
    assert "has 1 episodes that an estimate can use" in (said := capsys.readouterr().err)
    assert "in 15 the actions were not drawn independently" in said


@pytest.mark.long
@pytest.mark.usefixtures("rough_fits")
def test_episodes_of_the_most_likely_actions_are_left_out_of_a_mixed_dataset(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`record`, and then `record --stochastic` into the same folder."""
    policy = load_policy(run)
    drawn = recorded_in(policy, 40)
    likely = [dataclasses.replace(e, log_probs=None, rewards=e.rewards + 100) for e in drawn[:7]]
    expected, _ = estimated(run, write_dataset(tmp_path / "drawn", policy.spec, drawn), capsys)
    both = write_dataset(tmp_path / "both", policy.spec, [*likely, *drawn])
    result, said = estimated(run, both, capsys)
    assert "7 episodes were left out, because they have no probabilities of their actions" in said
    del result["warnings"], expected["warnings"]
    assert result == {**expected, "episodes_without_probabilities": 7}
    all_likely = write_dataset(tmp_path / "likely", policy.spec, likely)
    assert main(["estimate", str(run), str(all_likely)]) == 2
    assert "they were not recorded; use --record" in capsys.readouterr().err


@pytest.mark.long
def test_an_episode_in_several_parts_is_one_episode(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also between those of other rows, and where a later recording counts from 0 again. A rest
    that does not follow the part before it is no part of the same episode."""
    policy = load_policy(run)
    whole = [
        dataclasses.replace(each, number=(0, 0, 0, i % 2, i // 4))
        for i, each in enumerate(independent(recorded_in(policy, 30), True))
    ]
    expected, _ = estimated(
        run, write_dataset(tmp_path / "whole", policy.spec, whole), capsys, FAST
    )
    parts = []
    for even, odd in zip(whole[::2], whole[1::2], strict=True):
        cuts = [(0, 2), (2, 3), (3, 5)]
        parts += [part(each, *cut) for cut in cuts for each in (even, odd)]
    lost = part(whole[1], 2, 5)
    data = write_dataset(tmp_path / "parts", policy.spec, [lost, *parts, part(whole[0], 0, 2)])
    result, said = estimated(run, data, capsys, FAST)
    for name in ("is", "wis", "pdis"):
        assert result[name]["value"] == pytest.approx(expected[name]["value"], rel=1e-6)
    assert result["episodes"] == 30 and result["episodes_left_out"] == 2
    assert result["steps"] == expected["steps"] and "2 episodes were left out" in said


@pytest.mark.long
@pytest.mark.usefixtures("rough_fits")
def test_episodes_that_begin_beside_one_that_is_cut_are_left_out_and_said(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At the end of a recording, and where an actor was lost. One that was shortened, or was not
    drawn independently, says nothing about the others."""
    policy = load_policy(run)
    given = [
        dataclasses.replace(each, span=(10 * i, 10 * i + 15))
        for i, each in enumerate(independent(recorded_in(policy, 40), True))
    ]
    cut = dataclasses.replace(given[0], terminations=np.zeros(5, bool), span=(355, 400))
    lost = dataclasses.replace(cut, span=(100, 120))
    no_window = [
        dataclasses.replace(given[0], shortened=True, span=(0, 400)),
        *independent([dataclasses.replace(cut, span=(0, 400))], False),
    ]
    left = [each for i, each in enumerate(given) if i not in (10, 11, 12, 36, 37, 38, 39)]
    expected, said = estimated(run, write_dataset(tmp_path / "left", policy.spec, left), capsys)
    assert "began while one was going on" not in said and expected["episodes_beside_cut"] == 0
    episodes = [*given[:20], lost, *no_window, *given[20:], cut]
    result, said = estimated(run, write_dataset(tmp_path / "all", policy.spec, episodes), capsys)
    for name in ("is", "wis", "pdis"):
        assert result[name] == expected[name]
    assert result["dr"] != expected["dr"], "the Q-function is fitted to them as well"
    assert (result["episodes"], result["episodes_beside_cut"]) == (33, 7)
    assert result["episodes_left_out"] == 4
    assert "7 episodes were left out, because they began while one was going on" in said
    assert "it is not known when they were cut" not in said


def part(episode: StoredEpisode, begin: int, end: int) -> StoredEpisode:
    return dataclasses.replace(
        episode,
        observations={n: leaf[begin : end + 1] for n, leaf in episode.observations.items()},
        actions={n: leaf[begin:end] for n, leaf in episode.actions.items()},
        begins=begin == 0,
        **{
            name: getattr(episode, name)[begin:end]
            for name in ("rewards", "terminations", "truncations", "log_probs", "independent")
        },
    )


def test_what_a_recording_lacks_is_said(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = load_policy(run)
    episodes = independent(recorded_in(policy, 10), True)
    lacks = {"episodes": 12, "steps": 3456, "cut_episodes": 0}
    for cut in (0, 2):
        folder = tmp_path / f"{cut}"
        lacks["cut_episodes"] = cut
        write_dataset(folder, policy.spec, episodes, dropped=lacks)
        result, said = estimated(run, folder, capsys, FAST)
        assert "the recording lacks 12 whole episodes" in said and "3,456 env steps" in said
        assert ("biased towards short episodes" in said) == bool(cut)
        assert {name: result[f"dropped_{name}"] for name in lacks} == lacks
    write_dataset(tmp_path / "killed", policy.spec, episodes, dropped={"breaks": 2})
    _, said = estimated(run, tmp_path / "killed", capsys, FAST)
    assert "were going on or not stored yet when the recording was broken off, 2 times" in said
    assert "are rather long ones: the estimates are biased towards short episodes" in said


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with Box actions."""
    folder = tmp_path_factory.mktemp("estimate") / "box"
    run_serially(folder, 1, env="tests.support.envs:AimEnv", train_for_env_steps=300)
    return folder


def of_boxes(spec: EnvSpec) -> list[StoredEpisode]:
    rng = np.random.default_rng(0)
    return [
        dataclasses.replace(
            each,
            observations={
                name: rng.normal(0, 0.1, (6, *leaf.shape)).astype(leaf.dtype)
                for name, leaf in spec.observations.items()
            },
        )
        for each in recorded([5] * 10, spec.actions)
    ]


@pytest.mark.long
def test_box_actions_of_an_earlier_version_are_warned_of(
    box: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their datasets do not say which rows had correlated noise."""
    spec = load_policy(box).spec
    episodes = of_boxes(spec)
    for marked, given in ((False, episodes), (True, independent(episodes, True))):
        data = write_dataset(tmp_path / f"{marked}", spec, given)
        assert main(["estimate", str(box), str(data), "--no-doubly-robust"]) == 0
        said = capsys.readouterr().err
        assert ("do not say whether their Box actions were drawn" in said) is not marked


@pytest.mark.long
def test_squashed_and_unsquashed_box_actions_are_not_compared(
    run: Path, box: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The density of a squashed policy beyond the bounds is 0, and was computed as that of an
    action within. Data that do not say how they were drawn are taken, and so are discrete ones."""
    spec, plain = load_policy(box).spec, load_policy(run)
    given = independent(of_boxes(spec), True)
    squashed = write_dataset(tmp_path / "squashed", spec, given, squashed_actions=True)
    assert main(["estimate", str(box), str(squashed), FAST]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "recorded with --model.squash-actions, and the run has --model.no-squash-actions" in said
    assert "record data with a policy that has --model.no-squash-actions, too" in said
    alike = write_dataset(tmp_path / "alike", spec, given, squashed_actions=False)
    unsaid = write_dataset(tmp_path / "unsaid", spec, given)
    assert estimated(box, alike, capsys, FAST) == estimated(box, unsaid, capsys, FAST)
    discrete = independent(recorded_in(plain, 10), True)
    other = write_dataset(tmp_path / "discrete", plain.spec, discrete, squashed_actions=True)
    assert estimated(run, other, capsys, FAST)[0]["episodes"] == 10


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"max_episode_steps": 100}, "end after 100 env steps at the latest, and those of the run"),
        ({"max_episode_steps": None}, "end after 27,000 env steps at the latest, and those"),
        ({"frame_skip": 4}, "was taken for 4 env frames, and one of the run is for 1"),
    ],
)
def test_episodes_with_another_limit_or_action_repeat_are_refused(
    change: dict[str, Any],
    reason: str,
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    policy = load_policy(run)
    assert (policy.spec.max_episode_steps, policy.spec.frame_skip) == (500, 1)
    episodes = independent(recorded_in(policy, 5), True)
    spec = dataclasses.replace(policy.spec, **change)
    data = write_dataset(tmp_path / "data", spec, episodes)
    assert main(["estimate", str(run), str(data), FAST]) == 2
    assert reason in " ".join(capsys.readouterr().err.split())


@pytest.mark.long
def test_what_a_run_without_a_limit_has_recorded_is_taken(
    box: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its episodes have one wherever the trained policy plays."""
    assert load_policy(box).spec.max_episode_steps is None
    data = tmp_path / "data"
    record = ["record", str(box), "--trust", "--stochastic", "--episodes", "20", "--quiet"]
    assert main([*record, "--out", str(data)]) == 0
    capsys.readouterr()
    result, _ = estimated(box, data, capsys, FAST)
    assert result["is"]["value"] == pytest.approx(result["behaviour_return"], rel=1e-4)


@pytest.mark.long
def test_a_policy_that_clips_observations_is_given_clipped_ones(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clipping = tmp_path / "run"
    run_serially(clipping, 1, train_for_env_steps=500, clip_observations=True)
    spec = load_policy(run).spec
    assert spec.spaces is not None
    space: Any = spec.spaces.observation
    given = [
        dataclasses.replace(each, observations={"obs": each.observations["obs"] * 50})
        for each in independent(recorded_in(load_policy(run), 20), True)
    ]
    within = [
        dataclasses.replace(
            each, observations={"obs": each.observations["obs"].clip(space.low, space.high)}
        )
        for each in given
    ]
    beyond = write_dataset(tmp_path / "beyond", spec, given)
    cut = write_dataset(tmp_path / "cut", spec, within)
    assert estimated(run, beyond, capsys, FAST) != estimated(run, cut, capsys, FAST)
    assert estimated(clipping, beyond, capsys, FAST) == estimated(clipping, cut, capsys, FAST)
