"""The tools of the documentation (docs/tools), for tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "docs" / "tools"))

from command_line import commands
from http_api import reference as http_reference
from serve_settings import reference as serve_settings
from site_hooks import expanded
from words import avoided

__all__ = ["avoided", "commands", "expanded", "http_reference", "serve_settings"]
