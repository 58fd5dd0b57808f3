"""The file of a sweep: what it may say, and the messages for what it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from sampleforge.config import ConfigError
from sampleforge.tools.sweep.spec import SweepSpec, read_spec
from sampleforge.tools.sweep.study import sampler

CONFIG = "config: {env: CartPole-v1, train_for_env_steps: 1e5}\n"
SEARCH = "search: {learning_rate: {low: 1e-5, high: 1e-2, log: true}}\n"


def spec(tmp_path: Path, text: str) -> SweepSpec:
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    return read_spec(path)


def test_a_trial_has_the_shared_settings_and_the_chosen_ones(tmp_path: Path) -> None:
    text = """
algo: appo
preset: cartpole
config: {train-for-env-steps: 2e4, model: {core: gru}}
search:
  learning-rate: {low: 1e-5, high: 1e-2, log: true}
  num_epochs: {low: 1, high: 4}
  model.hidden_sizes: {choices: [[32], [64, 64]]}
"""
    read = spec(tmp_path, text)
    chosen = {"learning_rate": 1e-3, "num_epochs": 2, "model.hidden_sizes": "[64, 64]"}
    config = read.config(chosen, run_dir="trials/0001", seed=7)
    assert (config.env, config.train_for_env_steps) == ("CartPole-v1", 20_000)
    assert (config.learning_rate, config.num_epochs) == (1e-3, 2)
    assert config.model.hidden_sizes == (64, 64) and config.model.core == "gru"
    assert (config.run_dir, config.seed) == ("trials/0001", 7)
    assert read.is_whole("num_epochs") and not read.is_whole("learning_rate")
    assert read.num_trials == 20


def test_the_values_of_a_trial_are_those_that_its_run_has(tmp_path: Path) -> None:
    """YAML reads 1e-4 as a text, and the config of the run as a number."""
    text = f"""
algo: appo
{CONFIG}
search:
  learning_rate: {{choices: [0.001, 1e-4]}}
  num_epochs: {{choices: [1, 2e0]}}
  model.hidden_sizes: {{choices: [[32], [64, 64]]}}
  exploration: {{choices: [entropy, symmetric_kl]}}
"""
    read = spec(tmp_path, text)
    trials = [read.values_of({name: read.grid(name)[at] for name in read.search}) for at in (0, 1)]
    names = ("learning_rate", "num_epochs", "model.hidden_sizes", "exploration")
    assert [[trial[name] for name in names] for trial in trials] == [
        [0.001, 1, [32], "entropy"],
        [1e-4, 2, [64, 64], "symmetric_kl"],
    ]
    assert [type(trial["num_epochs"]) for trial in trials] == [int, int]


def test_a_grid_has_all_combinations(tmp_path: Path) -> None:
    text = f"""
algo: appo
sampler: grid
{CONFIG}
search:
  num_epochs: {{low: 1, high: 4}}
  gamma: {{low: 0.9, high: 0.98, step: 0.04}}
  exploration: {{choices: [entropy, symmetric_kl]}}
"""
    read = spec(tmp_path, text)
    assert read.grid("num_epochs") == [1, 2, 3, 4]
    assert read.grid("gamma") == pytest.approx([0.9, 0.94, 0.98])
    assert read.num_trials == 4 * 3 * 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"algo: appo\ntrails: 3\n{CONFIG}{SEARCH}", "'trails'. Did you mean trials?"),
        (f"algo: apo\n{CONFIG}{SEARCH}", "Did you mean appo?"),
        (f"{CONFIG}{SEARCH}", "algo: Unknown algorithm (missing)"),
        (f"algo: appo\n{CONFIG}", "there is no setting to search"),
        (f"algo: appo\n{CONFIG}search: {{learning_rat: {{low: 1, high: 2}}}}", "learning_rate?"),
        (f"algo: appo\n{CONFIG}search: {{gamma: {{lo: 1, high: 2}}}}", "Did you mean low?"),
        (f"algo: appo\n{CONFIG}search: {{gamma: {{low: 0.9}}}}", "low and high"),
        (f"algo: appo\n{CONFIG}search: {{gamma: {{low: 0.9, high: 0.8}}}}", "low and high"),
        (f"algo: appo\n{CONFIG}search: {{gamma: 0.9}}", "key: value lines"),
        (f"algo: appo\n{CONFIG}search: {{gamma: {{choices: []}}}}", "one at least"),
        (f"algo: appo\n{CONFIG}search: {{exploration: {{low: 1, high: 2}}}}", "give it choices"),
        (f"algo: appo\n{CONFIG}search: {{gamma: {{low: 2, high: 3}}}}", "--gamma"),
        (f"algo: appo\n{CONFIG}search: {{run_dir: {{choices: [a]}}}}", "move it to config"),
        (f"algo: appo\n{CONFIG}search: {{env: {{choices: [a]}}}}", "move it to config"),
        (f"algo: appo\n{CONFIG}search: {{quiet: {{choices: [true]}}}}", "move it to config"),
        (
            f"algo: appo\n{CONFIG}search: {{report_interval: {{choices: [1, 2]}}}}",
            "move it to config",
        ),
        (
            f"algo: appo\nconfig: {{env: X, gama: 1, train_for_seconds: 5}}\n{SEARCH}",
            "Did you mean gamma?",
        ),
        (f"algo: appo\nconfig: {{env: CartPole-v1}}\n{SEARCH}", "train_for_env_steps"),
        (f"algo: appo\nconfig: {{train_for_seconds: 5}}\n{SEARCH}", "there is no env"),
        (
            f"algo: appo\nconfig: {{env: X, learning_rate: 1, train_for_seconds: 5}}\n{SEARCH}",
            "both in config and in search",
        ),
        (f"algo: appo\ntrials: 1\ntrials: 2\n{CONFIG}{SEARCH}", "trials is given twice (lines"),
        (
            f"algo: appo\npruning-points: 1\npruning_points: 2\n{CONFIG}{SEARCH}",
            "pruning_points is given twice (as pruning-points",
        ),
        (
            f"algo: appo\n{CONFIG}search: {{num-epochs: 1, num_epochs: 2}}",
            "search: num_epochs is given twice (as num-epochs",
        ),
        (
            f"algo: appo\nconfig: {{env: X, model: {{core-size: 1, core_size: 2}}}}\n{SEARCH}",
            "config: model: core_size is given twice (as core-size",
        ),
        (f"algo: appo\nsampler: grid\n{CONFIG}{SEARCH}", "a grid needs choices"),
        (f"algo: appo\npruner: medain\n{CONFIG}{SEARCH}", "median"),
        (f"algo: appo\nseed: 4294967296\n{CONFIG}{SEARCH}", "at most 4294967295"),
        (f"algo: appo\ntrials: 0\n{CONFIG}{SEARCH}", "sweep.yaml: trials 0: must be at least 1"),
        (
            f"algo: appo\nsampler: grid\ntrials: 4\n{CONFIG}"
            "search: {num_epochs: {low: 1, high: 3}}",
            "trials 4: the grid has 3 points",
        ),
        (
            f"algo: appo\n{CONFIG}search: {{gamma: {{choices: [0.99, 1.5]}}}}",
            "search: gamma: no trial can have 1.5 (--gamma 1.5",
        ),
        (f"algo: appo\n{CONFIG}search: {{gamma: {{low: 0.9, high: 1.5}}}}", "change the range"),
        (f"algo: appo\n{CONFIG}search: {{gamma: {{low: 0.9, high: .inf}}}}", "high inf"),
        (f"algo: appo\n{CONFIG}search: {{gamma: {{low: 0.9, high: 1, step: .nan}}}}", "step nan"),
        (
            f"algo: appo\n{CONFIG}search: {{num_epochs: {{low: 1, high: 4, step: 0.5}}}}",
            "search: num_epochs: step 0.5: must be a whole number",
        ),
        (
            f"algo: appo\n{CONFIG}search: {{num_epochs: {{low: 1.5, high: 1.9}}}}",
            "search: num_epochs: low 1.5: must be a whole number",
        ),
    ],
)
def test_what_cannot_run_is_refused_with_the_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        spec(tmp_path, text)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("benchmark: true", "config: benchmark: a trial would learn nothing"),
        ("sampler_only: true", "config: sampler_only: a trial would learn nothing"),
        ("resume: never", "config: resume: the same command resumes a sweep"),
        ("record: data", "record the best trial afterwards (sampleforge record)"),
    ],
)
def test_settings_with_which_no_trial_trains_by_itself_are_refused(
    tmp_path: Path, setting: str, message: str
) -> None:
    config = f"config: {{env: CartPole-v1, train_for_env_steps: 1e5, {setting}}}\n"
    with pytest.raises(ConfigError) as refused:
        spec(tmp_path, f"algo: appo\n{config}{SEARCH}")
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("gama: 0.9", "config: unknown key 'gama'. Did you mean gamma?"),
        ("gamma: 1.5", "config: --gamma 1.5"),
        ("gamma: high", "config: gamma: 'high' must be a number"),
        ("model: {cor: gru}", "config: model: unknown key 'cor'"),
    ],
)
def test_a_fault_of_all_trials_is_not_one_of_a_searched_setting(
    tmp_path: Path, setting: str, message: str
) -> None:
    config = f"config: {{env: CartPole-v1, train_for_env_steps: 1e5, {setting}}}\n"
    search = "search: {clip_ratio: {low: 0.1, high: 0.3}, model.hidden_sizes: {choices: [[32]]}}"
    with pytest.raises(ConfigError) as refused:
        spec(tmp_path, f"algo: appo\n{config}{search}")
    assert f"sweep.yaml: {message}" in str(refused.value)


def test_settings_that_fit_only_beside_searched_values_are_taken(tmp_path: Path) -> None:
    """--v-min needs the value distribution c51."""
    config = "config: {env: X, train_for_env_steps: 1e5, v_min: -5}\n"
    gamma = "gamma: {low: 0.9, high: 0.99}"
    search = f"search: {{{gamma}, value_distribution: {{choices: [c51]}}}}"
    assert spec(tmp_path, f"algo: apex\n{config}{search}").shared["v_min"] == -5
    with pytest.raises(ConfigError, match="config: --v-min -5"):
        spec(tmp_path, f"algo: apex\n{config}search: {{{gamma}}}")


@pytest.mark.parametrize("sizes", ["[128, 256]", "[256, 128]"])
def test_values_that_fit_only_beside_some_of_another_setting_are_taken(
    tmp_path: Path, sizes: str
) -> None:
    """A minibatch of 256 does not fit into a batch of 128, but into one of 256."""
    search = (
        f"search: {{batch_size: {{choices: [128, 256]}}, minibatch_size: {{choices: {sizes}}}}}"
    )
    assert spec(tmp_path, f"algo: appo\n{CONFIG}{search}").search.keys() == {
        "batch_size",
        "minibatch_size",
    }


def test_a_grid_allows_its_own_points_and_no_others(tmp_path: Path) -> None:
    """0.1 + 2 * 0.1 is above 0.3 by rounding."""
    search = "search: {clip_ratio: {low: 0.1, high: 0.3, step: 0.1}}"
    read = spec(tmp_path, f"algo: appo\nsampler: grid\n{CONFIG}{search}")
    assert read.grid("clip_ratio") == [0.1, 0.2, 0.3]
    assert all(read.allows("clip_ratio", value) for value in read.grid("clip_ratio"))
    assert not read.allows("clip_ratio", 0.15) and not read.allows("clip_ratio", "0.1")


def test_values_outside_of_the_ranges_are_not_allowed(tmp_path: Path) -> None:
    search = "search: {gamma: {low: 0.9, high: 0.99}, exploration: {choices: [entropy]}}"
    read = spec(tmp_path, f"algo: appo\n{CONFIG}{search}")
    assert read.allows("gamma", 0.95) and read.allows("exploration", "entropy")
    for name, value in (("gamma", 0.5), ("gamma", "0.95"), ("exploration", "x"), ("env", "a:b")):
        assert not read.allows(name, value)


@pytest.mark.parametrize("name", ["tpe", "random", "grid"])
def test_a_resumed_sweep_with_the_largest_seed_has_a_sampler(tmp_path: Path, name: str) -> None:
    pytest.importorskip("optuna")
    search = "search: {gamma: {choices: [0.9, 0.99]}}\n"
    read = spec(tmp_path, f"algo: appo\nsampler: {name}\nseed: {2**32 - 1}\n{CONFIG}{search}")
    sampler(read, 5)
