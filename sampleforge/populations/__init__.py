"""Populations: training in which several policies or runs learn from each other's results.

`exploit.py` and `explore.py` hold the pure functions of population-based training (PBT), and
`lineage.py` its record; `pbt.py` trains the policies of one run as a population, and `schedule.py`
exports the hyperparameters that a population has found, so that one run can replay them.

`opponents.py` draws the opponents of self-play, `league.py` knows the results against them, and
`ratings.py` rates policies that play each other.
"""
