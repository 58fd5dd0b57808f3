"""The imports of the fork server, which its children inherit. Importing this module does it all."""

import gc
import os

from sampleforge.runtime.imports import import_heavy
from sampleforge.runtime.processes import PRELOADED, end_with_parent, restore_search_path


def import_all() -> None:
    """Import what workers need, and the families of environments, whose modules import no
    simulator. Children that did it themselves took 20 ms each."""
    import_heavy(
        "setproctitle",
        "multiprocessing.popen_forkserver",
        "sampleforge.models.cnn",
        *os.environ.get(PRELOADED, "").split(),
        "sampleforge.runners.processes",
    )
    from sampleforge.env.registry import load_families
    from sampleforge.runtime.torch_settings import limit_threads

    load_families()  # a child says what has failed
    limit_threads(1)  # children do so again, but need not look at these libraries' files
    gc.freeze()


end_with_parent()  # before the imports: the server must also end if the driver dies during them
restore_search_path()
import_all()
