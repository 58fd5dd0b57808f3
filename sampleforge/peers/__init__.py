"""Collective operations between ranks: groups, rendezvous, progress boards."""
