"""What the fork server imports once for all children. Importing this module is its whole effect."""

from sampleforge.runtime.imports import import_heavy

import_heavy("setproctitle", "sampleforge.topologies.registry", "sampleforge.topologies.processes")
