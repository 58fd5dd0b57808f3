"""What the fork server imports once for all children. Importing this module is its whole effect."""

from sampleforge.runtime.imports import import_heavy
from sampleforge.runtime.processes import end_with_parent

end_with_parent()  # also in the middle of the imports, which hold the driver's stdout open
import_heavy("setproctitle", "sampleforge.topologies.registry", "sampleforge.runners.processes")
