"""The modules of the target's own folder: the only ones that a reload imports again."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType

from mcp_actors.cli.target import split_target

__all__ = ["OwnModules"]

# The engine runs, and must not be imported a second time, where the target stands in a checkout of it.
_ENGINE = ("mcp_actors", "mcp_transports")
_NOT_ENGINE = "mcp_actors.examples"
_INSTALLED = frozenset({"site-packages", "dist-packages"})


class OwnModules:
    """Knows the modules of the folder of a target, with all below it, but for what is installed there.

    Args:
        target: As `mcp_actors.cli.target.load_server` has it; a module has to be imported already.
    """

    def __init__(self, target: str) -> None:
        self.root = _folder_of(split_target(target)[0])

    def __repr__(self) -> str:
        return f"<OwnModules below {self.root}>"

    def loaded(self) -> dict[str, ModuleType]:
        """Returns those that are imported now, by name."""
        return {name: each for name, each in list(sys.modules.items()) if self._is_own(name, each)}

    def files(self) -> list[str]:
        """Returns the files of those that are imported now."""
        return [str(each.__file__) for each in self.loaded().values()]

    def take_out(self) -> dict[str, ModuleType]:
        """Makes Python forget those that are imported, so that it imports them again, and returns them."""
        taken = self.loaded()
        for name in taken:
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return taken

    def put_back(self, taken: Mapping[str, ModuleType]) -> None:
        """Makes Python know again what `take_out` has returned, in the place of all that was imported since."""
        for name in self.loaded().keys() - taken.keys():
            sys.modules.pop(name, None)
        sys.modules.update(taken)

    def _is_own(self, name: str, module: object) -> bool:
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py") or name == "__main__":
            return False
        if _within(name, _ENGINE) and not _within(name, (_NOT_ENGINE,)):
            return False
        path = Path(file)
        if not path.is_relative_to(self.root) or not _INSTALLED.isdisjoint(path.parts):
            return False
        prefix = Path(sys.prefix)
        return not (prefix.is_relative_to(self.root) and path.is_relative_to(prefix))


def _within(name: str, packages: Iterable[str]) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in packages)


def _folder_of(place: str) -> Path:
    """Returns the folder of a file, or of the package or module that is imported first for a module."""
    if place.endswith(".py") or os.sep in place:
        return Path(place).resolve().parent
    top = _NOT_ENGINE if _within(place, (_NOT_ENGINE,)) else place.partition(".")[0]
    spec = importlib.util.find_spec(top)
    # A package without an `__init__.py` has no file, but places.
    places = (
        [] if spec is None else [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    )
    if not places or places[0] is None:
        return Path.cwd()
    first = Path(places[0]).resolve()
    return first if first.is_dir() else first.parent
