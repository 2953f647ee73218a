"""What a program that makes load notes of each call: one line of JSON. It needs nothing but the standard library.

``end`` is one of:

=========== ===========================================================================================
``right``   the answer was the call's own
``wrong``   it was another's, or a notification of somebody else came; ``error`` says what it was
``error``   the client raised; ``error`` names the exception's type and how its text begins
``silent``  nothing came for `SILENCE` seconds: neither an answer nor an exception
``unheard`` an update of a resource did not reach its subscriber for `HEARING` seconds
=========== ===========================================================================================
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol

CLOCK = float(os.environ.get("MCP_NODES_CLOCK", "8"))  # seconds that each client gives an answer
SILENCE = CLOCK + 30.0  # seconds; more than any clock of a client, so that only a call that hangs is silent
HEARING = 4.0  # seconds for an update to reach its subscriber
PAUSE = float(os.environ.get("MCP_NODES_PAUSE", "0.8"))  # seconds between two calls of a session, at the mean
STEP = float(os.environ.get("MCP_NODES_STEP", "0.1"))  # seconds between two reports of progress
RAMP = float(os.environ.get("MCP_NODES_RAMP", "1"))  # seconds until all sessions of a program have begun

KINDS = ("echo",) * 8 + ("count",) * 3 + ("slow",) * 3 + ("publish",) * 3 + ("task",) * 3
"""The calls of a session are drawn from these."""


class Load:
    """One program's part of the load: from when there is a file ``begin`` in a folder until there is one ``over``."""

    def __init__(self, client: str, folder: str, tasks: bool) -> None:
        self.client = client
        self.tasks = tasks
        self._folder = folder
        self.ready: dict[str, float] = {}
        """Since when each topic's subscriber is subscribed; without those who are not."""
        self.heard: dict[str, int] = {}

    @property
    def begun(self) -> bool:
        return os.path.exists(f"{self._folder}/begin")

    @property
    def over(self) -> bool:
        return os.path.exists(f"{self._folder}/over")

    def next_kind(self) -> str:
        kind = random.choice(KINDS)
        return "echo" if kind == "task" and not self.tasks else kind

    def note(self, session: int, kind: str, began: float, end: str, error: str = "", node: str = "") -> None:
        row: dict[str, Any] = {
            "client": self.client,
            "session": session,
            "kind": kind,
            "at": began,
            "end": end,
        }
        row["took"] = time.time() - began
        if error:
            row["error"] = error[:400]
        if node:
            row["node"] = node
        print(json.dumps(row), flush=True)

    def hear(self, topic: str, uri: str) -> None:
        """Notes that the subscriber of ``topic`` was told of ``uri``, which must be the same."""
        if uri != topic:
            self.note(
                int(topic.rpartition("-")[2]),
                "update",
                time.time(),
                "wrong",
                f"told of {uri} instead of {topic}",
            )
        self.heard[topic] = self.heard.get(topic, 0) + 1


class Counter:
    """How often the tool ``count`` may have run in each session that it named: every answered call, and none besides.

    A client may begin a new session by itself when the server has forgotten its own.
    """

    def __init__(self) -> None:
        self.attempted = 0
        self.answered: dict[str, int] = {}

    def fits(self, session: str, calls: int) -> bool:
        self.answered[session] = self.answered.get(session, 0) + 1
        return self.answered[session] <= calls <= self.attempted


def described(error: BaseException) -> str:
    """The types of an exception, without the groups around it, and how its text begins."""
    if isinstance(error, BaseExceptionGroup):
        return " + ".join(sorted({described(each) for each in error.exceptions}))
    return f"{type(error).__name__}: {' '.join(str(error).split())[:240]}"


class Connection(Protocol):
    """One session of a client, or what takes its place in the stateless revision."""

    async def call(self, tool: str, arguments: dict[str, Any], on_progress: Callable[[str], None]) -> str:
        """Calls a tool and returns the text of its result; ``on_progress`` is given each message."""
        ...

    async def task(self, token: str, seconds: float) -> str:
        """The same for the tool ``work``, as a task."""
        ...


class Client(Protocol):
    """What the three programs in Python differ in."""

    def connect(self, load: Load, topic: str) -> AbstractAsyncContextManager[Connection]:
        """Connects, and keeps a subscription to ``topic`` while it can: see `Load.ready` and `Load.hear`."""
        ...

    def ended(self, error: Exception) -> bool:
        """Whether the error says that the session is no more, so that another one must be begun."""
        ...

    def move_on_after(self, seconds: float) -> AbstractContextManager[Any]: ...

    async def sleep(self, seconds: float) -> None: ...


class Session:
    """One session after the other, with one call after the other, until the time is over."""

    def __init__(self, load: Load, client: Client, number: int) -> None:
        self.load = load
        self.client = client
        self.number = number
        self.calls = 0
        self.failures = 0
        self.counter = Counter()

    def topic(self, number: int) -> str:
        return f"news://{self.load.client}-{number}"

    async def run(self) -> None:
        while not self.load.begun:
            await self.client.sleep(0.1)
        await self.client.sleep(random.random() * RAMP)
        while not self.load.over:
            began, phase = time.time(), "connect"
            self.counter, self.failures = Counter(), 0
            try:
                async with self.client.connect(self.load, self.topic(self.number)) as connection:
                    self.load.note(self.number, "connect", began, "right")
                    began, phase = time.time(), "close"
                    while not self.load.over and self.failures < 2:
                        began = time.time()
                        await self.one_call(connection)
                        await self.client.sleep(random.uniform(0.5, 1.5) * PAUSE)
                    began = time.time()
            except Exception as error:
                self.load.note(self.number, phase, began, "error", described(error))
            self.load.ready.pop(self.topic(self.number), None)
            await self.client.sleep(random.uniform(0.2, 1))

    async def one_call(self, connection: Connection) -> None:
        self.calls += 1
        kind, began = self.load.next_kind(), time.time()
        token = f"{self.load.client}-{self.number}-{self.calls}"
        end, error, node = "silent", "", ""
        try:
            with self.client.move_on_after(SILENCE):
                end, error, node = await self.answered(connection, kind, token)
            self.failures = 0
        except Exception as raised:
            end, error = "error", described(raised)
            self.failures += 2 if self.client.ended(raised) else 1
        self.load.note(self.number, kind, began, end, error, node)

    async def answered(self, connection: Connection, kind: str, token: str) -> tuple[str, str, str]:
        foreign: list[str] = []

        def on_progress(message: str) -> None:
            if message != token:
                foreign.append(message)

        arguments: dict[str, Any] = {"token": token}
        partner = self.topic(self.number ^ 1)
        since, heard = self.load.ready.get(partner), self.load.heard.get(partner, 0)
        if kind == "slow":
            arguments |= {"steps": random.randint(3, 12), "pause": STEP}
        elif kind == "publish":
            arguments["uri"] = partner
        elif kind == "count":
            self.counter.attempted += 1
        if kind == "task":
            text = await connection.task(token, random.uniform(2, 12) * STEP)
        else:
            text = await connection.call(kind, arguments, on_progress)
        answer, node, *rest = text.split("|")
        if answer != token or foreign:
            return "wrong", f"{text} {foreign} instead of {token}", node
        if rest and not self.counter.fits(rest[0], int(rest[1])):
            return "wrong", f"{rest} of {self.counter.answered} of {self.counter.attempted}", node
        if kind == "publish" and since is not None:
            return await self.hearing(partner, since, heard), "", node
        return "right", "", node

    async def hearing(self, topic: str, since: float, heard: int) -> str:
        end = time.time() + HEARING
        while self.load.ready.get(topic) == since and self.load.heard.get(topic, 0) == heard:
            if time.time() > end:
                return "unheard"
            await self.client.sleep(0.05)
        return "right"
