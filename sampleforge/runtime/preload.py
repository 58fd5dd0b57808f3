"""What the fork server imports once for all children. Importing this module is its whole effect."""

import gymnasium  # noqa: F401
import torch  # noqa: F401

import sampleforge.workers  # noqa: F401
