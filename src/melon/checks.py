"""The conformance checks under their former name; they live in `melon.testing`."""

import melon.testing
from melon.testing import *  # noqa: F403

__all__ = melon.testing.__all__
