"""Names that were given and do not exist: the one that was meant, or what takes its place."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar, cast

M = TypeVar("M", bound=Callable[..., Any])

NEAR = 0.65
"""Least similarity (`difflib.SequenceMatcher.ratio`) of a name that is suggested. At 0.6 "resume"
suggests "presets", and one wrong letter of three is 0.67."""
LEAST_PART = 4
"""Least length of a name that suggests the longer names which contain it."""


GONE = {
    "exploration_schedule": "anneal: {exploration_coeff: linear}",
    "policy_weights": "init_from: {policy_1: RUN}",
}
"""Former name of a setting -> what takes its place."""


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Return the known names that ``name`` may be a wrong spelling or a part of, best first; case
    does not matter. It is empty if none is near: an unrelated name helps less than none."""
    by_lower, asked = {k.lower(): k for k in known}, name.lower()
    near = difflib.get_close_matches(asked, by_lower, count, NEAR)
    if len(asked) >= LEAST_PART:
        near += sorted((k for k in by_lower if asked in k and k not in near), key=len)
    return [by_lower[k] for k in near[:count]]


OTHER_SETTINGS: dict[str, tuple[str, ...]] = {
    name: tuple(ours.split())
    for ours, names in {
        "learning_rate": "lr q_lr policy_lr critic_lr actor_lr",
        "lr_schedule": "anneal_lr",
        "lr_target_kl": "target_kl lr_schedule_kl_threshold",
        "adam_betas": "adam_beta1 adam_beta2",
        "num_workers": "workers num_env_runners num_rollout_workers",
        "num_envs_per_worker": "num_envs n_envs",
        "num_splits": "worker_num_splits",
        "num_policy_workers": "policy_workers_per_policy",
        "worker_niceness": "default_niceness",
        "serial": "serial_mode",
        "device": "cuda gpu num_gpus",
        "decorrelate": "decorrelate_envs_on_one_worker decorrelate_experience_max_seconds",
        "rollout": "n_steps num_steps rollout_fragment_length",
        "sequence_length rollout": "recurrence",
        "batch_size": "train_batch_size",
        "minibatch_size": "sgd_minibatch_size",
        "num_epochs": "n_epochs update_epochs num_sgd_iter",
        "train_for_env_steps": "total_timesteps timesteps n_timesteps total_steps steps",
        "max_episode_steps": "horizon",
        "reward_clip": "clip_rewards",
        "exploration_coeff initial_temperature": (
            "ent_coef entropy_coeff entropy_coef exploration_loss_coeff"
        ),
        "exploration": "exploration_loss",
        "kl_coeff": "kl_loss_coeff",
        "value_coeff": "vf_coef vf_loss_coeff value_loss_coeff",
        "value_clip": "ppo_clip_value clip_range_vf vf_clip_param clip_vloss",
        "advantage": "with_vtrace use_gae",
        "normalise_advantages": "norm_adv normalize_advantage",
        "clip_ratio": "clip_range clip_coef clip_param ppo_clip_ratio",
        "max_grad_norm": "grad_clip",
        "gamma": "discount",
        "gae_lambda": "lambda lambda_",
        "replay_capacity": "buffer_size",
        "priority_alpha": "prioritized_replay_alpha",
        "priority_beta": "prioritized_replay_beta",
        "double": "double_q",
        "noisy_nets": "noisy",
        "head_size": "decoder_mlp_layers",
        "epsilon_first": "start_e exploration_initial_eps",
        "epsilon_last": "end_e exploration_final_eps",
        "epsilon_env_steps": "exploration_fraction",
        "updates_per_env_step": "gradient_steps utd",
        "target_rate": "tau",
        "target_update_interval": "target_network_frequency",
        "actor_interval": "policy_delay policy_frequency",
        "initial_temperature priority_alpha": "alpha",
        "learn_temperature": "autotune",
        "exploration_noise noise_correlation": "action_noise",
        "target_noise": "policy_noise target_policy_noise",
        "target_noise_clip": "noise_clip",
        "num_critics": "n_critics",
        "model.hidden_sizes": "net_arch encoder_mlp_layers fcnet_hiddens hidden_size",
        "model.activation": "activation_fn nonlinearity fcnet_activation",
        "model.encoder": "features_extractor_class encoder_conv_architecture",
        "model.cnn_features": "encoder_conv_mlp_layers",
        "model.core": "use_rnn rnn_type use_lstm",
        "model.core_size": "rnn_size lstm_cell_size",
        "model.normalise_observations": "normalize_input norm_obs observation_filter",
        "model.action_std": "adaptive_stddev",
        "model.initial_log_std": "log_std_init initial_stddev",
        "evaluate_interval": "eval_freq evaluation_interval",
        "evaluate_episodes": "n_eval_episodes evaluation_duration",
        "run_dir": "experiment train_dir exp_name log_dir logdir output_dir save_dir",
        "resume": "restart_behavior",
        "init_from": "load load_model load_path pretrained",
        "checkpoint_interval": "save_freq save_interval save_every_sec",
        "milestone_interval": "save_milestones_sec",
        "report_interval": "log_interval experiment_summaries_interval",
        "metrics_window": "stats_avg stats_window_size metrics_num_episodes_for_smoothing",
        "action_repeat": "frame_skip env_frameskip",
        "input": "input_ data dataset demonstrations",
        "record": "output",
        "track": "with_wandb",
        "track_project": "wandb_project_name wandb_project",
        "track_group": "wandb_group",
        "pbt": "with_pbt",
        "pbt_period": "pbt_period_env_steps",
        "pbt_start": "pbt_start_mutation",
        "pbt_replaced": "pbt_replace_fraction",
        "pbt_perturb_chance": "pbt_mutation_rate",
        "pbt_factors": "pbt_perturb_min pbt_perturb_max",
        "pbt_relative_gap": "pbt_replace_reward_gap",
        "pbt_absolute_gap": "pbt_replace_reward_gap_absolute",
        "env": "env_id",
    }.items()
    for name in names.split()
}
"""Name of a setting in other libraries -> the same setting here, with a dot where it is one of a
part, or those that are it in different algorithms."""

_VIDEO = "`sampleforge eval RUN --video FILE.mp4` makes a video of a trained policy"
_BEST = "the best checkpoint is kept without being asked for, by evaluations or training episodes"
_OBSERVATIONS = (
    "model.normalise_observations learns what to subtract and divide by, as model.normalise_images "
    "does for pixels"
)
_EPSILON = (
    "each environment of Ape-X explores with an epsilon of its own, which does not fall: "
    "epsilon_base and epsilon_exponent; that of PQN falls from epsilon_first to epsilon_last"
)
_WANDB = "wandb reads it from its own environment variables: WANDB_ENTITY, WANDB_TAGS, WANDB_DIR"
_SHARED = "model.separate_critic is the opposite: off, the critic shares the policy's layers"
ELSEWHERE = {
    "algo": "the algorithm is the first word, `sampleforge train appo`, or the class of the config",
    "num_batches_per_epoch": "batch_size is all that an update learns from, and minibatch_size the "
    "part for a gradient step, which Sample Factory calls batch_size",
    "policy_kwargs": "the settings of the network are those of model, such as model.hidden_sizes",
    "use_sde": "there is no state-dependent exploration; noise_correlation makes noise last",
    "tensorboard_log": "TensorBoard's files are always written, into tb of the run's folder",
    **dict.fromkeys(("capture_video", "save_video", "render"), _VIDEO),
    **dict.fromkeys(("save_best_every_sec", "save_best_after", "save_best_metric"), _BEST),
    "save_model": "every run keeps checkpoints in its folder",
    "env_framestack": "the environment stacks its frames: env_kwargs (of Atari stack_num), or a "
    "wrapper in a factory of your own",
    "value_bootstrap": "a truncated episode is always bootstrapped from its last observation",
    "rnn_num_layers": "a core has one layer, of model.core_size units",
    **dict.fromkeys(
        ("num_minibatches", "n_minibatches", "nminibatches"),
        "minibatch_size of APPO, DD-PPO and PQN is batch_size / num_minibatches: the env steps of "
        "a gradient step",
    ),
    **dict.fromkeys(
        ("gradient_steps", "utd"),
        "samples_per_insert of Ape-X counts transitions: batch_size times the updates per env step",
    ),
    **dict.fromkeys(
        ("train_freq", "train_frequency"),
        "updates_per_env_step of SAC, CrossQ and TD3 is its inverse; of Ape-X samples_per_insert "
        "counts transitions: batch_size / train_freq",
    ),
    "polyak": "target_rate is 1 - polyak: the part that an update takes from the trained networks",
    "decoder_mlp_layers": "model.hidden_sizes are the layers before the core; none is behind it",
    **dict.fromkeys(("obs_scale", "obs_subtract_mean"), _OBSERVATIONS),
    **dict.fromkeys(
        (
            "exploration_fraction",
            "exploration_initial_eps",
            "exploration_final_eps",
            "start_e",
            "end_e",
        ),
        _EPSILON,
    ),
    **dict.fromkeys(("wandb_user", "wandb_tags", "wandb_job_type", "wandb_dir"), _WANDB),
    "heartbeat_interval": "env_timeout and learner_timeout say when a worker counts as hung",
    "framework": "networks are torch's",
    "torch_deterministic": "serial makes a run deterministic: workers take turns in one process",
    **dict.fromkeys(("actor_critic_share_weights", "vf_share_layers"), _SHARED),
    "verbose": "quiet prints less, and debug says more",
}
"""Name of a setting in other libraries -> what there is instead of it, where the algorithm has none
of `OTHER_SETTINGS`."""


OTHER_FLAGS = {
    "deterministic": "no-stochastic",
    "explore": "stochastic",
    "greedy": "no-stochastic",
    "eval-deterministic": "no-stochastic",
    "load-checkpoint-kind": "checkpoint",
    "max-num-episodes": "episodes",
    "policy-index": "policy",
    "save-video": "video",
    "render": "video",
    "evaluation-env": "evaluate-env",
    "evaluation-env-kwargs": "evaluate-env-kwargs",
    "evaluation-function": "evaluate-function",
    "exploration-schedule": "anneal exploration-coeff=linear",
    "policy-weights": "init-from policy_1=RUN",
}
"""Name of a flag in other libraries, or in earlier versions -> name of the same flag here, where it
is not that of a setting (`same_setting`)."""

OTHER_ALGORITHMS = {
    name: ours
    for ours, names in {
        "appo": "ppo a2c a3c impala",
        "apex": "dqn ddqn rainbow r2d2",
        "td3": "ddpg",
        "marwil": "bc",
    }.items()
    for name in names.split()
}
"""Algorithm of other libraries -> the one here that takes its place."""

NO_PRESET = (
    "a preset is a flag, --preset NAME, which may stand beside --config FILE; in Python its "
    "settings are sampleforge.presets.preset_values(ALGO, NAME), a dict of arguments of the config"
)


def same_setting(name: str, known: Collection[str]) -> str | None:
    """Return the ``known`` setting that is ``name`` in other libraries; None if there is none. One
    of a part is known if the part is, or if it is known itself, with the part's name or without."""
    for ours in OTHER_SETTINGS.get(name, ()):
        part, _, own = ours.rpartition(".")
        if ours in known or part in known:
            return ours
        if own in known:
            return own
    return None


def says_stochastic(method: M) -> M:
    """Return a method that answers the names which its argument ``stochastic`` has had, or has in
    other libraries, with this one (TypeError)."""

    @functools.wraps(method)
    def called(*args: Any, **given: Any) -> Any:
        for other, same in (("explore", ""), ("deterministic", "not ")):
            if other in given:
                raise TypeError(
                    f"{method.__name__}() has no argument {other}; give "
                    f"stochastic={same}{given[other]!r}"
                )
        return method(*args, **given)

    return cast("M", called)


def hint(name: str, known: Collection[str]) -> str:
    """Return the sentence that names the setting which ``name`` may mean; empty if none is near."""
    if name in GONE:
        return f". Did you mean {GONE[name]}?"
    if name == "preset":
        return f": {NO_PRESET}"
    if ours := same_setting(name, known):
        return f". Did you mean {ours}?"
    if name in ELSEWHERE:
        return f": {ELSEWHERE[name]}"
    near = [] if name in OTHER_SETTINGS else nearest(name, known, 1)  # none where it has no like
    return f". Did you mean {near[0]}?" if near else ""
