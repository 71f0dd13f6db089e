"""The conformance checks under their former name; they live in `melon.testing`."""

from melon.testing import *  # noqa: F403
