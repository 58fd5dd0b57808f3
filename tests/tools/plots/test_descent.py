"""Events of a population become lines of descent, also where members did rounds again."""

import math

import pytest

from sampleforge.tools.plots.descent import History
from tests.support.populations import simulated_population


def start(member, **values):
    return {
        "event": "start",
        "member": member,
        "round": 0,
        "env_steps": 0,
        "wall_s": 0.0,
        "hyperparameters": {"learning_rate": 0.1, **values},
    }


def score(member, number, objective, rate=0.1):
    return {
        "event": "score",
        "member": member,
        "round": number,
        "env_steps": 100 * number,
        "wall_s": 1.0,
        "objective": objective,
        "episodes": 9,
        "hyperparameters": {"learning_rate": rate},
    }


def exploit(member, number, donor, donor_steps=None, rate=0.1, donor_objective=5.0):
    return {
        "event": "exploit",
        "member": member,
        "round": number,
        "env_steps": 100 * number,
        "wall_s": 1.0,
        "donor": donor,
        "donor_env_steps": 100 * number if donor_steps is None else donor_steps,
        "snapshot": f"{donor}@{number}",
        "objective": 0.0,
        "donor_objective": donor_objective,
        "hyperparameters": {"learning_rate": rate},
    }


def explore(member, number, old, new):
    return {
        "event": "explore",
        "member": member,
        "round": number,
        "env_steps": 100 * number,
        "wall_s": 1.0,
        "changed": {"learning_rate": [old, new]},
        "hyperparameters": {"learning_rate": new},
    }


def three_generations():
    """2 copies 1 in round 1; 0 copies 2 in round 2, and is the best at the end."""
    return [
        *(start(m) for m in "012"),
        score("0", 1, 1.0),
        score("1", 1, 5.0, 0.2),
        score("2", 1, 0.0, 0.3),
        exploit("2", 1, "1", rate=0.2),
        explore("2", 1, 0.2, 0.4),
        score("0", 2, 1.0),
        score("1", 2, 6.0, 0.2),
        score("2", 2, 9.0, 0.4),
        exploit("0", 2, "2", rate=0.4, donor_objective=9.0),
        score("0", 3, 12.0, 0.4),
        score("1", 3, 7.0, 0.2),
        score("2", 3, 11.0, 0.4),
    ]


def test_the_ancestry_of_the_best_goes_back_through_all_donors():
    history = History(three_generations())
    assert history.best == "0"
    line = history.ancestry("0")
    assert [(stretch.member, stretch.begin, end) for stretch, end in line] == [
        ("1", 0, 100),
        ("2", 100, 200),
        ("0", 200, 300),
    ]
    assert [stretch.origin.snapshot for stretch, _ in line[1:]] == ["1@1", "2@2"]


def test_a_stretch_survives_up_to_the_last_copy_of_which_something_is_left():
    history = History(three_generations())
    until = {(s.member, s.begin): end for s, end in history.survival().items()}
    assert until == {("0", 200): 300, ("1", 0): 300, ("2", 100): 300}


def test_hyperparameters_change_with_copies_and_mutations():
    history = History(three_generations())
    first, second = history.stretches["2"]
    assert [(s.env_steps, s.values["learning_rate"]) for s in first.settings] == [
        (0, 0.1),
        (100, 0.3),
    ]
    (after,) = second.settings
    assert after.values["learning_rate"] == 0.4 and after.mutated == ("learning_rate",)


def test_a_snapshot_taken_as_the_donor_was_replaced_is_of_its_line_before():
    events = [
        *(start(m) for m in "012"),
        *(score(m, 1, float(m)) for m in "012"),
        exploit("0", 1, "2"),
        exploit("1", 1, "0"),
        *(score(m, 2, 1.0) for m in "012"),
    ]
    history = History(events)
    assert history.stretches["1"][1].parent is history.stretches["0"][0]


def test_a_snapshot_may_be_older_than_its_donor_is_now():
    events = [
        *(start(m) for m in "01"),
        score("0", 1, 1.0),
        score("0", 2, 2.0),
        exploit("0", 2, "1", donor_steps=0),
        score("1", 1, 9.0),
        score("0", 3, 3.0),
        exploit("1", 1, "0", donor_steps=150),
        score("1", 2, 9.0),
    ]
    history = History(events)
    parent = history.stretches["1"][1].parent
    assert (parent.member, parent.begin) == ("0", 0)


def test_a_round_that_was_done_again_after_a_resume_replaces_the_first_time():
    done = three_generations()
    again = [
        score("0", 2, 4.0),
        score("1", 2, 9.0),
        score("2", 2, 3.0),
        exploit("2", 2, "1", rate=0.2),
        score("0", 3, 5.0),
        score("1", 3, 9.5),
        score("2", 3, 8.0),
    ]
    history = History(done + again)
    assert history.best == "1"
    assert [s.objective for s in history.stretches["0"][0].scores] == [1.0, 4.0, 5.0]
    assert [c.snapshot for c in history.copies] == ["1@1", "1@2"]


def test_a_member_that_starts_again_has_no_earlier_life():
    history = History([start("0"), score("0", 1, 1.0), start("0"), score("0", 1, 3.0)])
    (only,) = history.stretches["0"]
    assert [s.objective for s in only.scores] == [3.0]


def test_an_unknown_objective_is_not_the_best():
    events = [*(start(m) for m in "01"), score("0", 1, None), score("1", 1, -4.0)]
    history = History(events)
    assert history.best == "1" and math.isnan(history.stretches["0"][0].objective)


def test_a_copy_that_was_not_scored_yet_is_not_the_best():
    events = [
        *(start(m) for m in "01"),
        score("0", 1, 1.0),
        score("1", 1, 2.0),
        exploit("0", 1, "1"),
    ]
    assert History(events).best == "1"


def test_of_equal_members_the_one_copied_into_longest_ago_is_the_best():
    events = [
        *(start(m) for m in "01"),
        score("0", 1, 1.0),
        score("1", 1, 2.0),
        exploit("0", 1, "1"),
        score("0", 2, 3.0),
        score("1", 2, 3.0),
    ]
    assert History(events).best == "1"


def test_members_are_ordered_as_numbers():
    assert History([start(m) for m in ("10", "9", "1")]).members == ["1", "9", "10"]


def test_every_member_of_a_large_population_descends_from_a_first_stretch():
    history = History(simulated_population(16, 30, seed=3))
    assert len(history.copies) > 15
    for member in history.members:
        line = history.ancestry(member)
        assert line[0][0].origin is None and line[-1][0].member == member
        ends = [end for _, end in line]
        assert ends == sorted(ends)


def test_an_unknown_donor_is_refused():
    with pytest.raises(ValueError, match="member 7 was copied, but has not started"):
        History([start("0"), exploit("0", 1, "7")])
