"""Transports from files outside of any installed package."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

from mcp_actors.cli.bench.plan import LoadError

__all__ = ["load_files"]


def load_files(files: Iterable[str]) -> None:
    """Imports each file; it calls `mcp_actors.abc.discovery.register_transport` for its transports."""
    for number, name in enumerate(files):
        path = Path(name).resolve()
        spec = importlib.util.spec_from_file_location(f"loaded_{number}_{path.stem}", path)
        if spec is None or spec.loader is None or not path.is_file():
            raise LoadError(f"{name} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        sys.path.insert(0, str(path.parent))
        spec.loader.exec_module(module)
