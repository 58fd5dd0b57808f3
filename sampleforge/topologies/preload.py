"""What the fork server imports once for all children. Importing this module is its whole effect."""

import setproctitle  # noqa: F401

import sampleforge.topologies.appo
import sampleforge.topologies.processes  # noqa: F401
