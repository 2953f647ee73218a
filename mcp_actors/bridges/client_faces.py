"""Clients, pools and groups for programs that do not run on Trio: how they are made, opened and closed.

The functions of the program among the options of a client are replaced by functions for the engine, which call them
where they belong (`adapted_options` and the functions below it).
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial, update_wrapper
from typing import Any, Self
from weakref import WeakKeyDictionary

import attrs

from mcp_actors.bridges.asyncio_bridge import AsyncioBridge
from mcp_actors.bridges.bridged_call import calling_bridge
from mcp_actors.bridges.faces import AsyncioFace, EngineBlock, Face, Opened, SyncFace
from mcp_actors.bridges.thread_bridge import CallbackThreads, ThreadBridge
from mcp_actors.errors import EngineStopped, LocalProtocolError, McpError
from mcp_actors.supervision.tracebacks import shorten

__all__ = [
    "AsyncioClientFace",
    "AsyncioGroupFace",
    "AsyncioPoolFace",
    "SyncClientFace",
    "SyncGroupFace",
    "SyncPoolFace",
    "adapted_access",
    "adapted_extensions",
    "adapted_middleware",
    "adapted_options",
]

OPENED_BEFORE = "a Client is opened once; make a new one"

_in_callbacks_of: ContextVar[frozenset[Opened]] = ContextVar("_in_callbacks_of", default=frozenset())


@contextmanager
def _callback_of(opened: Opened | None) -> Iterator[None]:
    """Notes that a callback of a client runs in the block, and in what it leads to."""
    noted = _in_callbacks_of.get()
    token = _in_callbacks_of.set(noted if opened is None else noted | {opened})
    try:
        yield
    finally:
        _in_callbacks_of.reset(token)


class ClientFace(Face):
    """A client for programs without Trio; its originals are made by ``_make``."""

    _make: Callable[..., Any]
    _known_access: WeakKeyDictionary[Any, Any]

    def __init__(self, target: Any, **options: Any) -> None:
        opened = Opened()
        try:
            original = type(self)._make(target, **self._for_engine(opened, options))
        except (McpError, TypeError) as error:
            shorten(error)
            raise
        super().__init__(original, opened)
        self._block: EngineBlock | None = None

    @classmethod
    def _for_engine(cls, opened: Opened, options: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the options of a client, with functions for the engine in place of those of the program."""
        adapted = adapted_options(options, partial(cls._adapted, opened))
        if adapted.get("auth") is not None:
            adapted["auth"] = adapted_access(adapted["auth"], partial(cls._adapted, None), cls._known_access)
        if adapted.get("extensions"):
            adapt = partial(cls._adapted, opened)
            adapted["extensions"] = adapted_extensions(adapted["extensions"], adapt, cls._back)
        if adapted.get("middleware"):
            adapt = partial(cls._adapted, opened)
            adapted["middleware"] = adapted_middleware(adapted["middleware"], adapt, cls._back)
        return adapted

    @classmethod
    def _of(cls, original: Any, source: Face) -> Self:
        """Returns the client of the program for one that belongs to something else, which opens and closes it."""
        made = cls.__new__(cls)
        Face.__init__(made, original, source._opened, source)
        made._block = None
        return made

    def __del__(self) -> None:
        # A mistake in the arguments leaves it without its attributes.
        block, engine = getattr(self, "_block", None), getattr(self, "_opened", Opened()).engine
        if block is None or engine is None or engine.has_ended or engine.is_exiting or not block.is_held:
            return
        warnings.warn(
            f"a client was not closed, and is closed now: {self!r}",
            ResourceWarning,
            source=self,
            stacklevel=1,
        )
        with suppress(EngineStopped):
            self._leave_soon()
        block.disown()

    @staticmethod
    def _adapted(opened: Opened | None, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns an async function for the engine that calls one of the program where that belongs.

        Without ``opened`` it belongs to many clients, and is called where the one belongs that needs it.
        """
        raise NotImplementedError

    @staticmethod
    def _back(function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function for the program that calls an async one of the engine."""
        raise NotImplementedError

    def _begin(self, bridge: AsyncioBridge | ThreadBridge) -> Any:
        """Takes note that the client is opened over ``bridge``, and returns the original."""
        if self._opened.engine is not None:
            raise LocalProtocolError(OPENED_BEFORE)
        self._opened.engine, self._opened.bridge = bridge.engine, bridge
        return self._original

    def _hold(self, bridge: AsyncioBridge | ThreadBridge) -> EngineBlock:
        self._block = EngineBlock(self._begin(bridge))
        return self._block

    @property
    def _is_in_callback(self) -> bool:
        """Whether a callback of this client runs here, or has led here, for which the end of its block would wait."""
        return self._opened in _in_callbacks_of.get()

    @property
    def _is_gone(self) -> bool:
        """Whether the engine that the client was in has ended, and the client with it; so it is in a fork."""
        return self._opened.engine is not None and self._opened.engine.has_ended

    def _leave_soon(self) -> None:
        """Begins to leave the block, for those who cannot wait for its end."""
        if self._block is not None and self._opened.engine is not None:
            self._opened.engine.post(self._block.begin_to_leave)


class AsyncioClientFace(ClientFace, AsyncioFace):
    """A client for asyncio programs."""

    _known_access = WeakKeyDictionary()

    async def __aenter__(self) -> Self:
        try:
            return await self.open()
        except McpError as error:
            shorten(error)
            raise

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def open(self) -> Self:
        """Connects, for programs that have no block to do it in: a notebook, for example. `aclose` is for its end.

        A client without any reference left is closed with a `ResourceWarning`.

        Raises:
            McpError: What entering the block raises.
        """
        bridge = AsyncioBridge.of_running_loop()
        try:
            await self._hold(bridge).enter_from_asyncio(bridge)
        except McpError as error:
            shorten(error)
            raise
        return self

    async def aclose(self) -> None:
        """Closes the connection and waits for its end; calls in flight raise `ConnectionLost`.

        Idempotent, and legal from any task and any loop, a callback's included. A client that is closed before
        it is opened cannot be opened any more. Cancelled, the connection is closed all the same.

        Raises:
            Exception: What the lifespan of a server in this process raised at its end.
        """
        if self._is_gone:
            return
        bridge = AsyncioBridge.of_running_loop()
        try:
            await bridge.call(self._original.aclose)
        finally:
            self._leave_soon()
        if self._block is not None and not self._is_in_callback:
            await self._block.leave_from_asyncio(bridge)

    @staticmethod
    def _adapted(opened: Opened | None, function: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any) -> Any:
            bridge = calling_bridge.get() if opened is None else opened.bridge
            assert bridge is not None
            with _callback_of(opened):
                return await bridge.run(function, *args)

        return call

    @staticmethod
    def _back(function: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any) -> Any:
            return await AsyncioBridge.of_running_loop().call(function, *args)

        return call


class SyncClientFace(ClientFace, SyncFace):
    """A client for programs without a loop."""

    _known_access = WeakKeyDictionary()

    def __enter__(self) -> Self:
        try:
            return self.open()
        except McpError as error:
            shorten(error)
            raise

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def open(self) -> Self:
        """Connects, for programs that have no block to do it in. `close` is for its end.

        A client without any reference left is closed with a `ResourceWarning`.

        Raises:
            McpError: What entering the block raises.
        """
        bridge = ThreadBridge()
        try:
            self._hold(bridge).enter_from_thread(bridge)
        except McpError as error:
            shorten(error)
            raise
        return self

    def close(self) -> None:
        """Closes the connection and waits for its end; calls in flight raise `ConnectionLost`.

        Idempotent, and legal from any thread, a callback's included. A client that is closed before it is
        opened cannot be opened any more.

        Raises:
            Exception: What the lifespan of a server in this process raised at its end.
        """
        if self._is_gone:
            return
        try:
            ThreadBridge().call(self._original.aclose)
        finally:
            self._leave_soon()
        if self._block is not None and not self._is_in_callback:
            ThreadBridge().call(self._block.leave)

    @staticmethod
    def _adapted(opened: Opened | None, function: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(function):
            return function
        threads = CallbackThreads()

        async def call(*args: Any) -> Any:
            # One that never returns must not hold up the end of the client.
            with _callback_of(opened):
                result = await threads.run(function, *args)
            return await result if inspect.isawaitable(result) else result

        return call

    @staticmethod
    def _back(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: ThreadBridge().call(function, *args)


# -- pools and groups ------------------------------------------------------------------------------------------------


class PoolFace(Face):
    """A pool of clients for programs without Trio; its originals are made by ``_make``."""

    _make: Callable[..., Any]

    def __init__(self) -> None:
        super().__init__(type(self)._make(), Opened())
        self._block = EngineBlock(self._original)

    def _begin(self, bridge: AsyncioBridge | ThreadBridge) -> EngineBlock:
        if self._opened.engine is not None:
            raise LocalProtocolError("a ClientPool is good for one block; make a new one")
        self._opened.engine = bridge.engine
        return self._block


class AsyncioPoolFace(PoolFace, AsyncioFace):
    """A pool of clients for asyncio programs."""

    _usage = "async with ClientPool() as pool"

    async def __aenter__(self) -> Self:
        bridge = AsyncioBridge.of_running_loop()
        await self._begin(bridge).enter_from_asyncio(bridge)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._block.leave_from_asyncio(self._bridge())

    async def open(self, client: Any) -> Any:
        """See `ClientPool.open`."""
        bridge = self._bridge()
        original = client._begin(bridge)
        try:
            await bridge.call(self._original.open, original)
        except BaseException as error:
            # The engine may have connected just before this was cancelled.
            await bridge.call(self._original.close, original)
            shorten(error)
            raise
        return client

    async def close(self, client: Any) -> None:
        """See `ClientPool.close`."""
        await self._bridge().call(self._original.close, client._original)


class SyncPoolFace(PoolFace, SyncFace):
    """A pool of clients for programs without a loop."""

    _usage = "with ClientPool() as pool"

    def __enter__(self) -> Self:
        bridge = ThreadBridge()
        self._begin(bridge).enter_from_thread(bridge)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._bridge().call(self._block.leave)

    def open(self, client: Any) -> Any:
        """See `ClientPool.open`."""
        bridge = self._bridge()
        original = client._begin(bridge)
        try:
            bridge.call(self._original.open, original)
        except BaseException as error:
            self._bridge().call(self._original.close, original)
            shorten(error)
            raise
        return client

    def close(self, client: Any) -> None:
        """See `ClientPool.close`."""
        self._bridge().call(self._original.close, client._original)


class GroupFace(Face):
    """A group of clients for programs without Trio; its originals are made by ``_make``."""

    _make: Callable[..., Any]
    _client: type[ClientFace]

    def __init__(
        self, servers: Any, *, options_for: Callable[[str], Mapping[str, Any]] | None = None, **options: Any
    ) -> None:
        opened = Opened()
        known: dict[str, dict[str, Any]] = {}

        def adapted_for(name: str) -> dict[str, Any]:
            if options_for is not None and name not in known:
                known[name] = self._client._for_engine(opened, options_for(name))
            return known.get(name, {})

        # What all groups take beside the options of clients has no functions in it.
        adapted = self._client._for_engine(opened, options)
        try:
            original = type(self)._make(servers, options_for=adapted_for, **adapted)
        except (McpError, TypeError) as error:
            shorten(error)
            raise
        super().__init__(original, opened)
        for name in self._original.names:
            # The function of the program is called here, and not in the engine.
            adapted_for(name)
        self._block = EngineBlock(self._original)

    def _begin(self, bridge: AsyncioBridge | ThreadBridge) -> EngineBlock:
        if self._opened.engine is not None:
            raise LocalProtocolError("a ClientGroup is good for one block; make a new one")
        self._opened.engine, self._opened.bridge = bridge.engine, bridge
        return self._block

    def _faced(self, value: Any) -> Any:
        return self._client._of(value, self) if type(value) is self._client._make else value


class AsyncioGroupFace(GroupFace, AsyncioFace):
    """A group of clients for asyncio programs."""

    _usage = "async with ClientGroup(...) as group"

    def __getitem__(self, name: str) -> Any:
        return self._faced(self._original[name])

    async def __aenter__(self) -> Self:
        bridge = AsyncioBridge.of_running_loop()
        await self._begin(bridge).enter_from_asyncio(bridge)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._block.leave_from_asyncio(self._bridge())


class SyncGroupFace(GroupFace, SyncFace):
    """A group of clients for programs without a loop."""

    _usage = "with ClientGroup(...) as group"

    def __getitem__(self, name: str) -> Any:
        return self._faced(self._original[name])

    def __enter__(self) -> Self:
        bridge = ThreadBridge()
        self._begin(bridge).enter_from_thread(bridge)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._bridge().call(self._block.leave)


# -- options with functions of the program ---------------------------------------------------------------------------

Function = Callable[..., Any]

Adapt = Callable[[Function], Function]
"""Returns a function for the engine that calls one of the program where that belongs."""

# The options that are functions of the program, or may be.
CALLBACKS = ("sampling", "elicitation", "roots", "on_log", "on_change", "on_notification", "on_lost")
# The functions in ``auth``, and in the grant that it may have.
OF_ACCESS = ("token",)
OF_GRANT = ("id_token", "assertion")


def adapted_options(options: Mapping[str, Any], adapt: Adapt) -> dict[str, Any]:
    """Returns the options of a client with all callbacks in them adapted; see the functions below for the others."""
    return {
        name: _with_signature(adapt(value), value) if name in CALLBACKS and callable(value) else value
        for name, value in options.items()
    }


def _with_signature(adapted: Function, function: Function) -> Function:
    """Gives an adapted function the signature of the program's, which the client checks when it is made."""
    return adapted if adapted is function else update_wrapper(adapted, function)


def adapted_access(access: Any, adapt: Adapt, known: WeakKeyDictionary[Any, Any]) -> Any:
    """Returns ``auth`` with the functions in it adapted, or as it is if it has none.

    The same object gives the same one again, found in ``known``: clients that share it share its tokens.
    """
    grant: Any = getattr(access, "grant", None)
    changed: dict[str, Any] = {name: adapt(each) for name, each in _functions(access, OF_ACCESS)}
    of_grant = {name: adapt(each) for name, each in _functions(grant, OF_GRANT)}
    if of_grant:
        changed["grant"] = attrs.evolve(grant, **of_grant)
    if not changed:
        return access
    if access not in known:
        known[access] = attrs.evolve(access, **changed)
        if hasattr(access, "counts"):
            # The program reads them from its own object.
            known[access].counts = access.counts
    return known[access]


def adapted_extensions(extensions: Any, adapt: Adapt, back: Adapt) -> Any:
    """Returns the extensions of a client with their functions adapted; those of lifespans stay in the engine.

    ``back`` returns a function for the program that calls one of the engine which the program's are given.
    """
    if not isinstance(extensions, list | tuple):
        return extensions
    return [_adapted_extension(each, adapt, back) for each in extensions]


def _adapted_extension(extension: Any, adapt: Adapt, back: Adapt) -> Any:
    if not hasattr(extension, "arounds"):
        # The client refuses what is not an extension.
        return extension

    def with_way_back(function: Function) -> Function:
        adapted = adapt(function)

        async def call(*args: Any) -> Any:
            return await adapted(*(_with_way_back(each, back) for each in args))

        return function if adapted is function else call

    made = copy.copy(extension)
    made.results = {kind: with_way_back(each) for kind, each in extension.results.items()}
    made.notifications = {name: adapt(each) for name, each in extension.notifications.items()}
    made.methods = {name: adapt(each) for name, each in extension.methods.items()}
    made.arounds = {
        name: [attrs.evolve(each, function=with_way_back(each.function)) for each in arounds]
        for name, arounds in extension.arounds.items()
    }
    return made


class _AdaptedMiddleware:
    """Middleware of the program for the engine; ``notification`` is there if the program's has it."""

    def __init__(self, call: Function, notification: Function | None) -> None:
        self._call = call
        if notification is not None:
            self.notification = notification

    async def __call__(self, *args: Any) -> Any:
        return await self._call(*args)


def adapted_middleware(middleware: Any, adapt: Adapt, back: Adapt) -> Any:
    """Returns the middleware of a client, each adapted as a function of an extension is.

    The objects of `mcp_actors.middleware` stay in the engine.
    """
    if not isinstance(middleware, list | tuple):
        return middleware
    return [_adapted_middleware(each, adapt, back) for each in middleware]


def _adapted_middleware(each: Any, adapt: Adapt, back: Adapt) -> Any:
    # A class is refused by the client, as it is.
    if not callable(each) or isinstance(each, type) or hasattr(each, "for_side"):
        return each

    def with_way_back(function: Function) -> Function:
        adapted = adapt(function)

        async def call(value: Any, call_next: Function) -> Any:
            return await adapted(value, back(call_next))

        return function if adapted is function else call

    function = each if inspect.isroutine(each) else each.__call__
    notification = getattr(each, "notification", None)
    return _AdaptedMiddleware(
        with_way_back(function), None if notification is None else with_way_back(notification)
    )


def _with_way_back(value: Any, back: Adapt) -> Any:
    if hasattr(value, "send"):
        return attrs.evolve(value, send=back(value.send))
    return back(value) if callable(value) else value


def _functions(owner: Any, names: tuple[str, ...]) -> list[tuple[str, Function]]:
    found = [(name, getattr(owner, name, None)) for name in names]
    return [(name, each) for name, each in found if callable(each)]
