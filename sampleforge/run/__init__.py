"""A training run as an object: `Session` runs it, each `Callback` takes part in it.

A session installs no signal handler, prints nothing and never ends the process; the command line
(`sampleforge.cli`) is a shell around it, and `sampleforge.api` the way in from Python.
"""
