"""Populations: several policies or runs that are compared, copied, mutated or searched.

`exploit.py` and `explore.py` hold the pure functions of population-based training (PBT), and
`lineage.py` its record; `pbt.py` trains the policies of one run as a population, and `schedule.py`
exports the hyperparameters that a population has found, so that one run can replay them.
`across_runs.py` trains a population of runs, and `sweep.py` searches settings by many runs; both
start their runs as jobs (`jobs.py`).

`opponents.py` draws the opponents of self-play, `league.py` knows the results against them, and
`ratings.py` rates policies that play each other.
"""
