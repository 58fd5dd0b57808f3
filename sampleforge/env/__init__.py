"""Environments as vectors of rows: registry, probe, adapters, backends, seeding."""
