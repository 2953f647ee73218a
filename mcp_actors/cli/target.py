"""TARGET -> Server: ``path.py`` or ``package.module``, then optionally ``:attribute``.

Without an attribute, the first of these in the module is taken:

1. ``server``: a `Server`, or a function that makes one;
2. the only `Server` among the module's attributes;
3. ``make_server`` or ``main``: a function that makes one.

A function gets ARGS as strings. A script may call ``server.run()`` at its end, or from ``main``: that does not run
it then; the server that it would have run is the one that is served.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from mcp_actors import Server
from mcp_actors.cli.failures import CommandFailure, WrongUsage
from mcp_actors.cli.start import loading
from mcp_actors.server import stopped_at_run

__all__ = ["is_ours", "load_again", "load_server", "split_target"]

_FACTORY_NAMES = ("make_server", "main")


class _WouldRun(BaseException):
    """Leaves a script at its ``server.run()``; no ``except Exception`` of the script is in the way."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.server = server


def _leave(server: Server) -> NoReturn:
    raise _WouldRun(server)


def load_server(target: str, args: Sequence[str]) -> Server:
    """Imports TARGET and finds or makes its server.

    What the target prints meanwhile goes to stderr, because stdout may carry the protocol.

    Args:
        target: a path or module, and optionally an attribute.
        args: the arguments for a function that makes a server.

    Raises:
        WrongUsage: The target does not exist, it has no server, or it does not take these arguments.
        CommandFailure: the target failed; the text is one line with its own file and line number.
        KeyboardInterrupt: A signal to stop came meanwhile.
    """
    with loading(), _stdout_is_stderr():
        return load_again(target, args)


def load_again(target: str, args: Sequence[str]) -> Server:
    """Does the same as `load_server`, but leaves standard output alone, so that it can run in a thread of a server.

    Args:
        target: a path or module, and optionally an attribute.
        args: the arguments for a function that makes a server.

    Raises:
        WrongUsage: The target does not exist, it has no server, or it does not take these arguments.
        CommandFailure: the target failed; the text is one line with its own file and line number.
    """
    place, attribute = split_target(target)
    with stopped_at_run(_leave):
        try:
            module = _import(place)
        except _WouldRun as stopped:
            return _without_args(stopped.server, place, args)
        found = _attribute(module, place, attribute) if attribute else _default(module, place)
        if isinstance(found, Server):
            return _without_args(found, target, args)
        return _make(found, attribute or str(getattr(found, "__name__", "the function")), place, args)


def split_target(target: str) -> tuple[str, str | None]:
    """Returns the path or module of a target, and its attribute if it names one."""
    if os.path.exists(target):
        return target, None
    place, colon, attribute = target.rpartition(":")
    # What follows the drive of Windows is a path.
    return (place, attribute) if colon and place and not _has_separator(attribute) else (target, None)


def _has_separator(place: str) -> bool:
    return os.sep in place or (os.altsep is not None and os.altsep in place)


def _import(place: str) -> ModuleType:
    is_file = place.endswith(".py") or _has_separator(place)
    if is_file and not os.path.isfile(place):
        raise WrongUsage(f"there is no file {place}")
    if os.path.isfile(place) and not place.endswith(".py"):
        raise WrongUsage(f"{place} is no Python file: TARGET is a .py file or a module that has a Server")
    try:
        return _import_file(Path(place).resolve()) if is_file else _import_module(place)
    except CommandFailure:
        raise
    except ModuleNotFoundError as error:
        if not is_file and error.name and (place == error.name or place.startswith(error.name + ".")):
            hint = f"; for a file write ./{place}.py" if os.path.isfile(f"{place}.py") else ""
            raise WrongUsage(
                f"there is no module {place}, neither installed in this Python nor in {os.getcwd()}{hint}"
            ) from error
        _cannot("import", place, error)
    except (Exception, SystemExit) as error:
        _cannot("import", place, error, _in_a_package(Path(place)) if is_file else "")


def _in_a_package(path: Path) -> str:
    """Returns what to write in place of a file of a package, which cannot import its neighbours by its path."""
    folder, names = path.resolve().parent, [path.stem]
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    return f"; as a module of its package, in {folder}, it is {'.'.join(names)}" if len(names) > 1 else ""


def _import_module(name: str) -> ModuleType:
    if not sys.flags.safe_path and os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does, and as it does not with -P
    if not all(part.isidentifier() for part in name.split(".")):
        raise WrongUsage(f"{name!r} is neither a path that ends in .py nor a module's name")
    return importlib.import_module(name)


def _import_file(path: Path) -> ModuleType:
    if sys.path[:1] != [str(path.parent)]:
        sys.path.insert(0, str(path.parent))  # as `python path.py` does: its neighbours can be imported
    # A file called json.py must not become everybody's `json`.
    name = path.stem if path.stem.isidentifier() and importlib.util.find_spec(path.stem) is None else ""
    spec = importlib.util.spec_from_file_location(name or f"_served_{abs(hash(path))}", path)
    if spec is None or spec.loader is None:
        raise WrongUsage(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # type hints are resolved through it
    spec.loader.exec_module(module)
    return module


def _attribute(module: ModuleType, place: str, attribute: str) -> Any:
    found: Any = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            names = ", ".join(sorted(_servers(module))) or "none"
            raise WrongUsage(f"{place} has no {attribute}; its servers: {names}") from None
    if not isinstance(found, Server) and not callable(found):
        raise WrongUsage(f"{place}:{attribute} is a {type(found).__name__}, not a Server or a function")
    return found


def _default(module: ModuleType, place: str) -> Any:
    named = getattr(module, "server", None)
    if isinstance(named, Server) or (callable(named) and not isinstance(named, ModuleType)):
        return named
    servers = _servers(module)
    if len(servers) == 1:
        return next(iter(servers.values()))
    if servers:
        raise WrongUsage(f"{place} has several servers: write {place}:{' or :'.join(sorted(servers))}")
    for name in _FACTORY_NAMES:
        factory = getattr(module, name, None)
        if callable(factory):
            return factory
    raise WrongUsage(f"{place} has no Server and no function server, make_server or main")


def _servers(module: ModuleType) -> dict[str, Server]:
    return {name: value for name, value in vars(module).items() if isinstance(value, Server)}


def _without_args(server: Server, target: str, args: Sequence[str]) -> Server:
    if args:
        url = next((f"; to serve it at {each} write --listen {each}" for each in args if "://" in each), "")
        raise WrongUsage(f"{target} is a Server and takes no ARGS (a function would){url}")
    return server


def _make(factory: Callable[..., Any], name: str, place: str, args: Sequence[str]) -> Server:
    try:
        inspect.signature(factory).bind(*args)
    except TypeError as error:
        given = " ".join(args) or "nothing"
        raise WrongUsage(f"{place}:{name}{inspect.signature(factory)} got {given}: {error}") from None
    except ValueError:  # some callables written in C have no signature: calling them will tell
        pass
    try:
        made = factory(*args)
    except _WouldRun as stopped:
        return stopped.server
    except CommandFailure:
        raise
    except ValueError as error:  # how a factory says that it does not like its ARGS
        raise WrongUsage(f"{place}: {error}") from error
    except (Exception, SystemExit) as error:
        _cannot("make a server with", f"{place}:{name}", error)
    if not isinstance(made, Server):
        if inspect.iscoroutine(made):
            made.close()
        raise WrongUsage(f"{place}:{name} made a {type(made).__name__}, not a Server")
    return made


def _cannot(verb: str, what: str, error: BaseException, hint: str = "") -> NoReturn:
    if isinstance(error, SyntaxError):  # says itself where it is
        where = ""
    else:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not is_ours(frame.filename)]
        where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    text = " ".join(str(error).split())
    raise CommandFailure(f"cannot {verb} {what}: {type(error).__name__}: {text}{where}{hint}") from error


def is_ours(filename: str) -> bool:
    """Whether a frame of a traceback is this file's or the import system's, and says nothing to a user."""
    return filename == __file__ or filename.startswith("<frozen importlib")


@contextmanager
def _stdout_is_stderr() -> Iterator[None]:
    """Redirects descriptor 1 itself, so that C libraries and child processes are covered."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
