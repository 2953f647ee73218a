"""The provider of a folder's Python files, whose functions are marked as tools, resources and prompts.

The folder is a package with a name of its own, so that a file imports another one by ``from ._database import read``.
A function's name for clients begins with that of its file: ``create`` of ``issues.py`` is ``issues_create``, and of
``github/issues.py`` it is ``github_issues_create``. A function that has the name of its file keeps it, and so does one
that is given ``name=``.
"""

from __future__ import annotations

import bisect
import importlib
import itertools
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar, Unpack, overload

import trio

from mcp_actors._server.components import ComponentKind
from mcp_actors._server.failures import LineNamed
from mcp_actors._server.options import PromptOptions, ResourceOptions, ToolOptions, check_decorated
from mcp_actors._server.provider import Provided, ProvidedPage, Provider
from mcp_actors._server.resources import check_uri
from mcp_actors._server.visibility import Caller
from mcp_actors.errors import LocalProtocolError
from mcp_actors.supervision.logging import log

__all__ = ["ModuleProvider", "prompt", "resource", "tool"]

# Files that one folder may have: a folder with more of them is not one that was meant.
MOST_FILES = 1_000
# Seconds between two looks whether a file has changed.
LOOK_EVERY = 1.0

_numbers = itertools.count(1)

F = TypeVar("F", bound=Callable[..., Any])

_Key = tuple[ComponentKind, str]


class _File(NamedTuple):
    """A file that was read."""

    stamp: tuple[int, int]
    """The time of its last change, and its size."""
    found: tuple[Provided, ...]


class ModuleProvider(Provider):
    """Provides what the files of a folder have.

    Args:
        folder: The folder. Files and folders in it whose names begin with ``_`` or ``.`` are left out.
        reload: Whether a file that has changed is loaded again when clients ask for something, once a second at most.

    Raises:
        LocalProtocolError: It is no folder, or has more than 1,000 files, or two functions would have the same name.
        Exception: What a file raises.
    """

    def __init__(self, folder: Path, *, reload: bool) -> None:
        self._folder = folder
        self._reload = reload
        self._looked_at = -float("inf")
        self._package = ModuleType(f"mcp_actors_modules_{next(_numbers)}", "The files of a folder.")
        self._package.__path__ = [str(folder)]
        self._files: dict[Path, _File] = {}
        if not folder.is_dir():
            raise LocalProtocolError(f"{str(folder)!r} is no folder of Python files")
        sys.modules[self._package.__name__] = self._package
        self._use({path: self._loaded(path, stamp) for path, stamp in _stamps(folder).items()})

    def __repr__(self) -> str:
        return f"<ModuleProvider of {len(self._files)} files>"

    async def list(self, kind: ComponentKind, caller: Caller, cursor: str | None, limit: int) -> ProvidedPage:
        """See `Provider.list`; the cursor is the last name of the page before."""
        await self._look()
        names = self._names[kind]
        begin = 0 if cursor is None else bisect.bisect_right(names, cursor)
        shown = names[begin : begin + limit]
        following = shown[-1] if begin + limit < len(names) else None
        return ProvidedPage([self._by_key[kind, name] for name in shown], following)

    async def get(self, kind: ComponentKind, name: str, caller: Caller) -> Provided | None:
        """See `Provider.get`."""
        await self._look()
        found = self._by_key.get((kind, name))
        if found is None and kind == "resource":
            templates = (self._by_key["template", text] for text in self._names["template"])
            found = next((each for each in templates if each.matches(name)), None)
        return found

    @property
    def items(self) -> Iterable[Provided]:
        """Everything that the files have."""
        return self._by_key.values()

    # -- files ---------------------------------------------------------------------------------------------------------

    def _use(self, files: dict[Path, _File]) -> None:
        """Offers what files have from now on; raises `LocalProtocolError` if two have the same."""
        by_key: dict[_Key, Provided] = {}
        for path, file in files.items():
            for each in file.found:
                if (each.kind, each.name) in by_key:
                    raise LocalProtocolError(
                        f"{path.name}: there is already a {each.kind} {each.name!r}: give it another name="
                    )
                by_key[each.kind, each.name] = each
        kinds: tuple[ComponentKind, ...] = ("tool", "prompt", "resource", "template")
        self._names = {kind: sorted(name for of, name in by_key if of == kind) for kind in kinds}
        self._by_key = by_key
        self._files = files

    def _loaded(self, path: Path, stamp: tuple[int, int]) -> _File:
        parts = path.relative_to(self._folder).with_suffix("").parts
        if any("." in each for each in parts):
            raise LocalProtocolError(
                f"{path.name}: the name of a module has no dot, nor has that of its folder"
            )
        name = ".".join((self._package.__name__, *parts))
        # At first, another file of the folder may have imported it already.
        former = sys.modules.pop(name, None) if path in self._files else None
        importlib.invalidate_caches()
        try:
            module = importlib.import_module(name)
        except BaseException:
            if former is not None:
                sys.modules[name] = former
            raise
        return _File(stamp, tuple(_found_in(module, parts)))

    async def _look(self) -> None:
        """Loads what has changed since the last look. What cannot be loaded stays as it was, which is logged."""
        # A server may be served again by another run of Trio, whose clock has nothing in common with that of the first.
        if not self._reload or 0 <= trio.current_time() - self._looked_at < LOOK_EVERY:
            return
        self._looked_at = trio.current_time()
        stamps = await trio.to_thread.run_sync(partial(_stamps, self._folder))
        if stamps == {path: file.stamp for path, file in self._files.items()}:
            return
        before = dict(self._by_key)
        files = {path: self._loaded_again(path, stamp) for path, stamp in stamps.items()}
        try:
            self._use(files)
        except LocalProtocolError as error:
            log.error("a folder of modules is not loaded again", error=str(error))
            return
        keys = {key for key, each in before.items() if self._by_key.get(key) is not each}
        for kind in sorted({kind for kind, _ in keys | (self._by_key.keys() - before.keys())}):
            self.changed(kind)

    def _loaded_again(self, path: Path, stamp: tuple[int, int]) -> _File:
        known = self._files.get(path)
        if known is not None and known.stamp == stamp:
            return known
        try:
            return self._loaded(path, stamp)
        except Exception as error:
            log.error("a module is not loaded again", file=path.name, exc_info=error)
            # With its stamp, so that it is not tried again before it changes.
            return _File(stamp, () if known is None else known.found)


def _stamps(folder: Path) -> Mapping[Path, tuple[int, int]]:
    """The files of a folder, in the order of their names; raises `LocalProtocolError` if there are too many."""
    found: dict[Path, tuple[int, int]] = {}
    for path in sorted(folder.rglob("*.py")):
        if any(part.startswith(("_", ".")) for part in path.relative_to(folder).parts):
            continue
        try:
            status = path.stat()
        except FileNotFoundError:
            # It was removed meanwhile.
            continue
        found[path] = (status.st_mtime_ns, status.st_size)
        if len(found) > MOST_FILES:
            raise LocalProtocolError(f"{str(folder)!r} has more than {MOST_FILES:,} files")
    return found


def _found_in(module: ModuleType, parts: tuple[str, ...]) -> Iterable[Provided]:
    for function in dict.fromkeys(filter(_marked, _values_of(module))):
        for each in _marked(function):
            if each.kind in ("resource", "template") or "name" in each.options:
                yield each
            else:
                own = each.name
                yield each.named("_".join(parts if own == parts[-1] else (*parts, own)))


def _values_of(module: ModuleType) -> Iterable[object]:
    # What a file imports from another one is that one's.
    return (each for each in vars(module).values() if getattr(each, "__module__", None) == module.__name__)


# -- marks of functions ---

_MARK = "__mcp_provided__"


@overload
def tool(function: F, /) -> F: ...


@overload
def tool(function: None = None, /, **options: Unpack[ToolOptions]) -> Callable[[F], F]: ...


def tool(function: Any = None, /, **options: Any) -> Any:
    """Decorator, with or without options: marks a function of a module as a tool, for `Server.add_modules`.

    Args:
        function: The function, when the decorator is used without options.
        options: Those of `Server.add_tool`, without ``task``, ``restartable`` and ``before_task``.

    Raises:
        TypeError, ValueError: As `Provided.tool` does.
    """
    check_decorated(function, "tool")
    return _marking(function, lambda each: Provided.tool(each, **options))


@overload
def prompt(function: F, /) -> F: ...


@overload
def prompt(function: None = None, /, **options: Unpack[PromptOptions]) -> Callable[[F], F]: ...


def prompt(function: Any = None, /, **options: Any) -> Any:
    """Decorator, with or without options: marks a function of a module as a prompt, for `Server.add_modules`.

    Args:
        function: The function, when the decorator is used without options.
        options: Those of `Server.add_prompt`.

    Raises:
        TypeError, ValueError: As `Provided.prompt` does.
    """
    check_decorated(function, "prompt")
    return _marking(function, lambda each: Provided.prompt(each, **options))


def resource(uri: str, **options: Unpack[ResourceOptions]) -> Callable[[F], F]:
    """Decorator: marks a function of a module as a resource, or as a template, for `Server.add_modules`.

    Args:
        uri: The URI, or a URI template (RFC 6570).
        options: Those of `Server.add_resource`, without ``list``.

    Raises:
        TypeError, ValueError: As `Provided.resource` does.
    """
    with LineNamed():
        check_uri(uri)
    marking: Callable[[F], F] = _marking(None, lambda each: Provided.resource(uri, each, **options))
    return marking


def _marking(function: Any, make: Callable[[Any], Provided]) -> Any:
    def mark(function: Any) -> Any:
        with LineNamed():
            setattr(function, _MARK, (*_marked(function), make(function)))
        return function

    return mark if function is None else mark(function)


def _marked(function: object) -> tuple[Provided, ...]:
    found = getattr(function, _MARK, ())
    return found if isinstance(found, tuple) else ()
