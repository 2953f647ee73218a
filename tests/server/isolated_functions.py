"""Functions of tools that tests run in processes of their own, which import this file."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio
import trio.lowlevel
from opentelemetry import baggage, trace
from opentelemetry.sdk.trace import TracerProvider

from mcp_actors import Context, Image, SyncContext, ToolError, current_context
from mcp_actors.errors import RpcError
from mcp_actors.types import CallToolResult, ElicitFormParams, TextContent

MIB = 1024 * 1024


# What the process reads and writes of its lifespans.
LIFE = Path(os.environ.get("ISOLATED_LIFE", os.devnull))


@dataclass
class Opened:
    number: int
    loop: Any = None
    thread: int = 0
    breaks: Any = None


@dataclass
class Point:
    x: int
    y: int = 0


@dataclass
class Name:
    first: str


def add(a: int, b: int = 1) -> int:
    return a + b


def mirror(point: Point, times: list[float]) -> Point:
    assert isinstance(point, Point)
    return Point(point.y, point.x + len(times))


def raw(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"got": arguments}


def picture() -> Image:
    return Image(b"\x89PNG\r\n\x1a\n")


def picture_of(path: str) -> Image:
    return Image(Path(path))


def whole() -> CallToolResult:
    return CallToolResult([TextContent("whole")], {"n": 1}, meta={"mine": 1})


def wrong() -> int:
    return "text"  # type: ignore[return-value]


def prints() -> str:
    print("this goes to standard error")
    os.write(1, b"and so does this\n")
    return f"read {sys.stdin.readline()!r}"


def pid() -> int:
    return os.getpid()


def open_files() -> list[str]:
    found = []
    for each in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{each}"))
        except OSError:
            continue  # that of the folder itself
    return found


def large(size: int, text: str) -> str:
    assert len(text) == size
    return text


async def on_trio(n: int) -> int:
    await trio.lowlevel.checkpoint()
    return n + 1


async def on_asyncio(n: int, ctx: Context) -> int:
    await asyncio.sleep(0)
    await ctx.progress(n)
    return n + 2


def fail(how: str) -> str:
    if how == "tool":
        raise ToolError("the author says so")
    if how == "rpc":
        raise RpcError(-32050, "own code", {"a": 1})
    if how == "group":
        raise ExceptionGroup("several", [ToolError("alone in it")])
    if how == "several":
        raise ExceptionGroup("several", [ValueError("one"), ToolError("two")])
    if how == "tool surrogate":
        raise ToolError("half a \ud83d pair")
    if how == "other surrogate":
        raise ValueError("half a \ud83d pair")
    if how == "rpc surrogate":
        raise RpcError(-32050, "half a \ud83d pair", "\ud83d")
    if how == "rpc object":
        raise RpcError(-32050, "own code", object())
    if how == "result surrogate":
        return "half a \ud83d pair"
    raise KeyError("secret")


def end(how: str, mark: str = "") -> str:
    """Ends its process, in one way or another."""
    if mark and how != "children":
        Path(mark).write_text(str(os.getpid()))
    if how == "sys.exit":
        sys.exit(3)
    elif how == "os._exit":
        os._exit(4)
    elif how == "segfault":
        ctypes.string_at(0)
    elif how == "abort":
        os.abort()
    elif how == "kill":
        os.kill(os.getpid(), 9)
    elif how == "memory":
        return str(len(bytearray(400 * MIB)))
    elif how == "memory in pieces":
        return str(len([bytes(100_000) for _ in range(4000)]))
    elif how == "cpu":
        while True:
            pass
    elif how == "lock":
        # The interpreter's lock is held, so that no thread of the process runs.
        return str(sum(range(10**12)))
    elif how == "threads":
        for _ in range(2000):
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        time.sleep(60)
    elif how == "sleep":
        time.sleep(60)
    elif how == "children":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        Path(mark).write_text(f"{os.getpid()} {child.pid}")
        time.sleep(60)
    elif how == "noise":
        # Descriptors that are not one's own.
        for each in range(3, 20):
            try:
                os.write(each, b"no message\n")
            except OSError:
                continue
        time.sleep(60)
    elif how == "forks":
        # The copy keeps the pipe open.
        if os.fork() == 0:
            time.sleep(60)
        os.kill(os.getpid(), 11)
    elif how == "leaves its group":
        if os.fork() == 0:
            os.setsid()
            Path(f"{mark}.left").write_text(str(os.getpid()))
            time.sleep(60)
        time.sleep(60)
    elif how == "flood":
        if os.fork() > 0:
            time.sleep(60)
        # The process reads no answers.
        os.kill(os.getppid(), 19)
        ask = b'["ask",1,"progress",[1,2,"%s"]]\n' % (b"x" * 1000)
        write_to_all(ask * 70_000)
    elif how == "closes":
        os.closerange(3, 20)
        time.sleep(60)
    return str(os.getpid())


def write_to_all(data: bytes) -> None:
    """Writes to descriptors that are not one's own."""
    for each in range(3, 20):
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(each, view) :]
        except OSError:
            continue


def writes(line: str, number: int) -> int:
    write_to_all(line.encode("latin-1") + b"\n")
    return number


def returns_twice(number: int) -> int:
    if os.fork() == 0:
        time.sleep(0.3)
    return number


async def leaves_a_question(asked: str, ctx: Context) -> str:
    """Ends while its answer is on its way."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ctx.elicit, "Long?", Name)
        while True:
            if await trio.Path(asked).exists():
                break
            await trio.sleep(0.001)
        # The thread that reads waits for the interpreter's lock meanwhile.
        sum(range(10**7 * 3))
        nursery.cancel_scope.cancel()
    return "left"


def leaves_a_thread() -> int:
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    return os.getpid()


def takes(mib: int) -> int:
    return len(bytearray(mib * MIB)) // MIB


def works(days: int, ctx: SyncContext) -> str:
    assert current_context() is ctx
    for day in range(1, days + 1):
        ctx.progress(day, days, f"day {day}")
    ctx.log("warning", {"half": "of it"})
    ctx.log("debug", "nobody wants this")
    return f"{ctx.method} {ctx.request_id} {ctx.meta.get('mine')} {ctx.peer.version} {ctx.deadline > time.monotonic()}"


async def works_on_trio(days: int, ctx: Context) -> str:
    async with trio.open_nursery() as nursery:
        for day in range(1, days + 1):
            nursery.start_soon(ctx.progress, day, days)
    await ctx.log("warning", "half of it")
    return ctx.method


def asks(ctx: SyncContext) -> str:
    found = ctx.elicit("First name?", Name)
    assert found.data is not None
    form = {"type": "object", "properties": {"first": {"type": "string"}}}
    answers = ctx.ask({"last": ElicitFormParams("Last name?", form)})
    return f"{found.data.first} {answers['last'].content['first']} in {os.getpid()}"


async def asks_on_trio(ctx: Context) -> str:
    found = await ctx.elicit("First name?", Name)
    assert found.data is not None
    return f"{found.data.first} in {os.getpid()}"


def samples(ctx: SyncContext) -> str:
    answer = ctx.sample("Say it", max_tokens=9)
    roots = ctx.list_roots()
    assert isinstance(answer.content, TextContent)
    return f"{answer.content.text} {roots[0].uri}"


def charges(path: str, ctx: SyncContext) -> str:
    paid = ctx.once("charge", _charge, path)
    name = ctx.elicit("Who?", Name)
    assert name.data is not None
    mailed = ctx.once("mail", lambda: _mail(path))
    return f"{paid.x} {mailed} {name.data.first}"


def _charge(path: str) -> Point:
    with Path(path).open("a") as file:
        file.write("charged\n")
    return Point(42)


async def _mail(path: str) -> str:
    await trio.lowlevel.checkpoint()
    async with await trio.open_file(path, "a") as file:
        await file.write("mailed\n")
    return "sent"


def looks(what: str, ctx: SyncContext) -> str:
    return str(getattr(ctx, what))


def traced(ctx: SyncContext) -> list[str]:
    """Makes a span, logs, and returns the ids of the span's trace and of its parent, its baggage, and its process."""
    tracer = TracerProvider().get_tracer("mine")
    parent = trace.get_current_span().get_span_context()
    with tracer.start_as_current_span("inside") as span:
        ctx.logger.warning("by structlog")
        logging.getLogger("mine").warning("by the standard library")
        ids = f"{span.get_span_context().trace_id:032x}", f"{parent.span_id:016x}"
    return [*ids, str(baggage.get_baggage("who")), str(os.getpid())]


async def traced_on_trio(ctx: Context) -> list[str]:
    await trio.lowlevel.checkpoint()
    return traced(ctx)  # type: ignore[arg-type]


async def traced_on_asyncio(ctx: Context) -> list[str]:
    await asyncio.sleep(0)
    return traced(ctx)  # type: ignore[arg-type]


def note(what: str) -> None:
    with LIFE.open("a") as file:
        file.write(f"{what} {os.getpid()}\n")


@contextmanager
def plain_block() -> Iterator[Opened]:
    note("opened")
    yield Opened(7, None, threading.get_ident())
    note("closed")


@asynccontextmanager
async def trio_block() -> AsyncIterator[Opened]:
    async def breaks() -> None:
        await event.wait()
        raise OSError("the connection is lost")

    if LIFE.with_suffix(".away").exists():
        raise OSError("the database is away")
    event = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(breaks)
        note("opened")
        yield Opened(8, trio.lowlevel.current_trio_token(), threading.get_ident(), event)
        await trio.lowlevel.checkpoint()
        note("closed")
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def asyncio_block() -> AsyncIterator[Opened]:
    note("opened")
    yield Opened(9, asyncio.get_running_loop())
    await asyncio.sleep(0)
    note("closed")


@asynccontextmanager
async def slow_block() -> AsyncIterator[None]:
    yield
    await trio.sleep_forever()


@contextmanager
def ending_block() -> Iterator[None]:
    note("opened")
    os._exit(6)
    yield


def takes_one(server: Any) -> Any:
    yield server


def uses(ctx: SyncContext[Opened]) -> int:
    assert ctx.state.loop is not None or ctx.state.thread == threading.get_ident()
    ctx.progress(1)
    return ctx.state.number


async def uses_on_trio(ctx: Context[Opened]) -> int:
    assert current_context() is ctx
    assert ctx.state.loop in (None, trio.lowlevel.current_trio_token())
    await ctx.progress(1)
    return ctx.state.number


async def uses_on_asyncio(ctx: Context[Opened]) -> list[int]:
    assert ctx.state.loop in (None, asyncio.get_running_loop())
    await asyncio.to_thread(os.getpid)
    await ctx.progress(1)
    return [ctx.state.number, os.getpid()]


async def breaks(ctx: Context[Opened]) -> None:
    ctx.state.breaks.set()
    await trio.sleep_forever()


async def exits(ctx: Context[Opened]) -> None:
    sys.exit(3)
