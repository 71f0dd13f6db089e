"""Compiles loops of a trial together with those of meta-training; kept in the temporary folder of this machine."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from melon.kernels.generator import written


def compiled(title: str, modules: tuple[ModuleType, ...], entries: tuple[str, ...]) -> ModuleType:
    """The modules as one, compiled for the types it is called with; later functions replace earlier ones of a name."""
    text = written(title, modules, entries)
    folder = Path(tempfile.gettempdir()) / "melon-trials"
    folder.mkdir(exist_ok=True)
    names = [module.__name__ for module in modules]  # what is read back looks its types up by them
    file = folder / f"trial_{hashlib.sha256(repr((text, names)).encode()).hexdigest()[:16]}.py"
    if not file.exists():
        file.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module
