"""The classes of programs that do not run on Trio, made from those of the engine, so that they cannot drift apart.

Each public member becomes one that does the same over a bridge, with the same signature and docstring. What a method
returns is put into the class that the same world has for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import partial, wraps
from types import FunctionType
from typing import Any

from mcp_actors.bridges.face_parts import AsyncioBlock, AsyncioIterator, SyncBlock, SyncIterator
from mcp_actors.bridges.faces import AsyncioFace, Face, SyncFace, in_engine

__all__ = ["in_sync_words", "mirror"]

# The words of the original's docstrings that are others where there is no loop.
SYNC_WORDS = (
    ("async with", "with"),
    ("async def", "def"),
    ("await ", ""),
    ("an async iterator", "an iterator"),
    ("aclose", "close"),
)


def mirror(
    original: type, face: type[Face], about: str, *, module: str, without: Iterable[str] = (), **members: Any
) -> Any:
    """Returns a class with the name of ``original`` and its public members, for programs that do not run on Trio.

    Args:
        original: A class of the engine.
        face: What the new class has of its own, beside what is made of the original.
        about: The beginning of its docstring, which replaces that of the original down to the arguments.
        module: The module that it belongs to.
        without: The members that programs have no use for.
        members: More members of the class.
    """
    _, args, rest = (inspect.getdoc(original) or "").partition("\nArgs:")
    is_asyncio = issubclass(face, AsyncioFace)
    made = type(original.__name__, (face,), {"__module__": module, **members})
    made.__doc__ = f"{inspect.cleandoc(about)}\n{args + rest if is_asyncio else in_sync_words(args + rest)}"
    for name in dir(original):
        member = inspect.getattr_static(original, name)
        if name.startswith("_") or name in without:
            continue
        if not hasattr(face, name):
            setattr(made, name, _mirrored(name, member, is_asyncio))
        elif (getattr(face, name).__doc__ or "").startswith("See `"):
            setattr(made, name, _redocumented(getattr(face, name), member, is_asyncio))
    return made


def _mirrored(name: str, member: Any, is_asyncio: bool) -> Any:
    if isinstance(member, property):
        return _reading(name, member)
    if inspect.iscoroutinefunction(member):
        made = (_in_asyncio if is_asyncio else _in_thread)(member)
    elif inspect.isasyncgenfunction(inspect.unwrap(member)):
        made = _making(member, AsyncioBlock if is_asyncio else SyncBlock)
    elif str(inspect.signature(member).return_annotation).startswith("AsyncIterator["):
        made = _making(member, AsyncioIterator if is_asyncio else SyncIterator)
    else:
        made = _asking(member)
    if not is_asyncio:
        made.__doc__ = in_sync_words(member.__doc__)
    return made


def _redocumented(function: Callable[..., Any], member: Any, is_asyncio: bool) -> Any:
    """Returns a function that does the same, with the signature and the docstring of the original's."""
    copy = FunctionType(function.__code__, function.__globals__, closure=function.__closure__)
    made = wraps(member)(copy)
    made.__doc__ = member.__doc__ if is_asyncio else in_sync_words(member.__doc__)
    return made


def in_sync_words(text: str) -> str:
    """Returns the text of a docstring as it is right for programs without a loop."""
    for asynchronous, sync in SYNC_WORDS:
        text = text.replace(asynchronous, sync)
    return text


def _in_asyncio(method: Callable[..., Any]) -> Any:
    reports = "on_progress" in inspect.signature(method).parameters

    @wraps(method)
    async def call(self: AsyncioFace, *args: Any, **options: Any) -> Any:
        bridge = self._bridge()
        if reports and options.get("on_progress") is not None:
            options["on_progress"] = partial(bridge.run, options["on_progress"])
        return self._faced(await bridge.call(partial(method, self._original, *args, **options)))

    return call


def _in_thread(method: Callable[..., Any]) -> Any:
    reports = "on_progress" in inspect.signature(method).parameters

    @wraps(method)
    def call(self: SyncFace, *args: Any, **options: Any) -> Any:
        bridge = self._bridge()
        if reports and options.get("on_progress") is not None:
            options["on_progress"] = partial(bridge.run, options["on_progress"])
        return self._faced(bridge.call(partial(method, self._original, *args, **options)))

    return call


def _making(method: Callable[..., Any], made: Callable[..., Any]) -> Any:
    """Makes a method that returns an iterator or a block at once, of which the program then makes use."""

    @wraps(method)
    def make(self: Face, *args: Any, **options: Any) -> Any:
        part = made(method(self._original, *args, **options), self._opened, self)
        part._faces = self._faces
        return part

    return make


def _asking(method: Callable[..., Any]) -> Any:
    """Makes a method of one that does not wait: that is called in the engine, where nothing it reads changes."""

    @wraps(method)
    def ask(self: Face, *args: Any, **options: Any) -> Any:
        engine = self._opened.engine
        function = partial(method, self._original, *args, **options)
        return self._faced(function() if engine is None else in_engine(engine, function))

    return ask


def _reading(name: str, original: property) -> property:
    def read(self: Face) -> Any:
        if self._opened.engine is None:
            self._not_here()
        return getattr(self._original, name)

    return property(read, doc=original.__doc__)
