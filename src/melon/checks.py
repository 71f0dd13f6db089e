"""The conformance checks under their former name; they live in `melon.testing`."""

from melon.testing import *  # noqa: F403
from melon.testing import __all__  # noqa: F401
