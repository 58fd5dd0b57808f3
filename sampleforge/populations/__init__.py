"""Populations: the policies of one run that are compared, copied and mutated, or play each other.

`rounds.py` holds the pure functions of population-based training (PBT), and `lineage.py` its
record; `pbt.py` trains the policies of one run as a population, and `schedule.py` exports the
hyperparameters that a population has found, so that one run can replay them. A population of runs
is `sampleforge.tools.pbt`, which decides by the same functions.

`self_play.py` has a policy play snapshots of itself, which `league.py` draws as its opponents, and
`ratings.py` rates policies that play each other.
"""
