"""The settings of `melon serve` as a Markdown table, generated from the class that reads them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def reference() -> str:
    """One line for each setting: its name, its default and what it means."""
    from melon.service.config import ServeSettings

    rows = [
        f"| `{name}` | {_default(name, field.default)} | {field.description} |"
        for name, field in ServeSettings.model_fields.items()
    ]
    return "\n".join(["| setting | default | meaning |", "|---|---|---|", *rows])


def _default(name: str, value: Any) -> str:
    if value is None or value == ():
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(value)
    if name.endswith("bytes") or name == "body_most":
        return f"{value >> 20} MB"
    return f"{value:,}" if isinstance(value, int) and value > 9999 else str(value)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
    sys.stdout.write(reference())
