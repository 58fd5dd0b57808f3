"""Populations: several policies or runs that are compared, copied, mutated or searched.

Sweeps (`sweep`) start training runs as jobs (`jobs`).
"""
