"""The imports of the fork server, which its children inherit. Importing this module does it all."""

import os

from sampleforge.runtime.imports import import_heavy
from sampleforge.runtime.processes import PRELOADED, end_with_parent

end_with_parent()  # before the imports: the server must also end if the driver dies during them
import_heavy(
    "setproctitle", *os.environ.get(PRELOADED, "").split(), "sampleforge.runners.processes"
)
