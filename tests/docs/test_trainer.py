"""docs/trainer.md has a row for every name of RLlib's common surface, and each row is true."""

from __future__ import annotations

import ast
import dataclasses
import re
from typing import Any, NamedTuple

import sampleforge as sf
from sampleforge.cli import VERBS
from sampleforge.cli.eval import EvalFlags
from sampleforge.cli.flags import flag_names, same_flag
from sampleforge.names import ELSEWHERE, nearest
from tests.support import REPO

PAGE = (REPO / "docs" / "trainer.md").read_text(encoding="utf-8")
ALGORITHM = """
train train_buffered step training_step iteration training_iteration stop cleanup evaluate metrics
log_result logdir trial_id trial_name reset reset_config restore_workers restore_env_runners
default_resource_request validate_env save save_checkpoint save_to_path restore load_checkpoint
restore_from_path from_checkpoint from_state export_policy_model export_model
export_policy_checkpoint import_policy_model_from_h5 get_metadata compute_single_action
compute_action compute_actions explore policy_id full_fetch prev_action prev_reward clip_action
unsquash_action get_policy get_module get_weights set_weights add_policy remove_policy add_module
remove_module get_default_policy_class workers env_runner_group learner_group offline_data
evaluate_offline get_default_config config get_config merge_algorithm_configs merge_trainer_configs
with_updates build_algo build_trainer env_runners learners tune.with_parameters tune.Tuner
"""
CONFIG = """
from_dict copy to_dict build environment rollouts training resources framework multi_agent
evaluation exploration callbacks reporting checkpointing fault_tolerance debugging
"""
CALLBACKS = """
on_algorithm_init on_trainer_init on_train_result on_evaluate_start on_evaluate_end
on_workers_recreated on_env_runners_recreated on_checkpoint_loaded on_sub_environment_created
on_environment_created on_create_policy
on_episode_start on_episode_created on_episode_step on_episode_end on_sample_end
on_postprocess_trajectory on_learn_on_batch
"""
NAMES = {
    *ALGORITHM.split(),
    *(f"AlgorithmConfig.{name}" for name in CONFIG.split()),
    *CALLBACKS.split(),
}
"""The names that users of RLlib 1.x and 2.x call, override or pass."""


class Row(NamedTuple):
    theirs: list[str]
    ours: str
    tests: list[tuple[str, str]]


def rows() -> list[Row]:
    """The rows of the tables, without their headings."""
    found = []
    for line in PAGE[PAGE.index("## Coming from RLlib") :].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|") or cells[0] == "RLlib" or set(cells[0]) <= set("-"):
            continue
        theirs, ours, shown = cells
        tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", shown)
        assert bool(tests) == bool(shown), line
        found.append(Row(re.findall(r"`([\w.]+)`", theirs), ours, tests))
    return found


def resolved(name: str) -> Any:
    """What a dotted name of ours is, from the package on. Raises AttributeError without one."""
    value: Any = sf
    for part in name.split("."):
        if isinstance(value, type) and dataclasses.is_dataclass(value):
            fields = {field.name for field in dataclasses.fields(value)}
            value = True if part in fields else getattr(value, part)
        else:
            value = getattr(value, part)
    return value


def test_every_name_of_rllib_has_one_row_and_a_counterpart_or_a_reason() -> None:
    named = [name for row in rows() for name in row.theirs]
    assert sorted(named) == sorted(NAMES)
    for row in rows():
        is_reason = row.ours.startswith("none: ") and len(row.ours) > 30
        assert is_reason or row.tests, f"{row.theirs}: name a test, or say why there is none"


def test_every_counterpart_exists() -> None:
    for row in rows():
        for name in re.findall(r"`((?:[A-Z]\w+|train|load_policy)(?:\.\w+)*)`", row.ours):
            is_instance = name.partition(".")[0] in ("Session", "Trainer") and "." in name
            assert (is_instance and in_init(name)) or resolved(name) is not None, name
        for verb in re.findall(r"`sampleforge (\w+)", row.ours):
            assert verb in VERBS, verb


def in_init(name: str) -> bool:
    """Whether an attribute is set by the methods of its class: `Trainer.iteration`."""
    cls, _, attribute = name.partition(".")
    code = (REPO / "sampleforge" / MODULES[cls]).read_text(encoding="utf-8")
    return re.search(rf"self\.{attribute}\b.* = ", code) is not None


MODULES = {"Trainer": "trainer.py", "Session": "run/session.py"}


def test_every_named_test_exists() -> None:
    for file, name in {test for row in rows() for test in row.tests}:
        tree = ast.parse((REPO / file).read_text(encoding="utf-8"))
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert name in functions, f"{file}::{name}"


def test_what_the_tables_of_other_libraries_name_is_there() -> None:
    """Settings, flags and names of the package in the second column."""
    section = PAGE[PAGE.index("## Coming from Stable") : PAGE.index("## Coming from RLlib")]
    cells = [line.split("|")[2] for line in section.splitlines() if line.startswith("| `")]
    configs = (sf.AppoConfig, sf.SacConfig, sf.Td3Config, sf.ApexConfig, sf.ModelConfig)
    fields = {field.name for config in configs for field in dataclasses.fields(config)}
    code = re.findall(r"`([^`]+)`", " ".join(cells))
    settings = [name for each in code for name in re.findall(r"\b([a-z_]+)=", each)]
    settings += [each for each in code if re.fullmatch(r"[a-z]+(_[a-z]+)+", each)]
    settings += [
        name[2:].replace("-", "_") for each in code for name in each.split() if "--" in name
    ]
    assert len(settings) > 30
    unknown = {*settings} - fields - {"callbacks", "run_dir", "video", "evaluate_policy"}
    assert not unknown, unknown
    for name in re.findall(r"\b([A-Z]\w+Config|LoadedPolicy\.\w+|Trainer\.\w+)", " ".join(code)):
        assert resolved(name) is not None, name


def test_every_setting_that_the_page_names_is_a_field() -> None:
    """Not a property or a method of the config."""
    configs = (sf.AppoConfig, sf.ApexConfig, sf.DdppoConfig, sf.MarwilConfig)
    fields = {c.__name__: {field.name for field in dataclasses.fields(c)} for c in configs}
    named = [n for n in re.findall(r"`(\w+Config)\.(\w+)`", PAGE) if n[0] in fields]
    assert len(named) > 20
    assert [f"{config}.{name}" for config, name in named if name not in fields[config]] == []


def test_flags_of_sample_factory_are_answered_with_what_their_row_names() -> None:
    section = PAGE[PAGE.index("## Coming from Sample") : PAGE.index("## Coming from Stable")]
    here = flag_names(sf.AppoConfig) | flag_names(EvalFlags)
    rows = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| `")]
    theirs = [(name, ours) for cell, ours in rows for name in re.findall(r"--([\w-]+)", cell)]
    assert len(theirs) > 50
    for name, ours in theirs:
        named = {flag.replace("no-", "") for flag in re.findall(r"--([\w.-]+)", ours)}
        assert named <= here, named - here
        flag = name.replace("_", "-")
        if flag not in here and name not in ELSEWHERE:
            meant = same_flag(flag, here) or nearest(flag, here, 1)[0]
            assert meant.replace("no-", "") in named, f"{name}: {meant}"
