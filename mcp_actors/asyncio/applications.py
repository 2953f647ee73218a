"""ASGI applications of the program that are called without a socket: their requests, and their lifespan.

All of it runs in one asyncio loop, that of the application. A request is cancelled with the call that waits for it;
what an application does behind its answer goes on.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from mcp_actors.abc.http import AsgiApplication, AsgiMessage
from mcp_actors.errors import LocalProtocolError
from mcp_actors.supervision.logging import log

__all__ = ["ApplicationTransport", "application_lifespan", "get_in_process"]

# Parts of an answer that wait for whoever reads it; then the application waits.
MAX_WAITING = 16
# Seconds for the start of an application, and for its end.
START_TIME = 60.0
STOP_TIME = 10.0


class ApplicationTransport(httpx2.AsyncBaseTransport):
    """Hands the requests of an `httpx2.AsyncClient` to an application, in the loop that runs.

    Closing it waits `STOP_TIME` seconds for what the application does behind its answers, and cancels the rest.

    Args:
        app: The application.
        timeout: Seconds that the application has until the end of an answer.
    """

    def __init__(self, app: AsgiApplication, timeout: float) -> None:
        self._app = app
        self._timeout = timeout
        self._tasks: set[asyncio.Task[None]] = set()
        self.state: dict[str, Any] = {}
        """What the application's lifespan has left for its requests."""

    def __repr__(self) -> str:
        return f"<ApplicationTransport running={len(self._tasks)}>"

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Returns the response as soon as its head is there.

        Raises:
            httpx2.ReadTimeout: It is not there in time.
            httpx2.RemoteProtocolError: The application has failed without an answer, or breaks the rules of ASGI.
        """
        exchange = _Exchange(await request.aread(), asyncio.get_running_loop().time() + self._timeout)
        scope = _scope(request, dict(self.state))
        task = asyncio.get_running_loop().create_task(exchange.run(self._app, scope))
        exchange.task = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            head = await exchange.next()
            if head["type"] != "http.response.start":
                raise httpx2.RemoteProtocolError(f"the application began with {head['type']!r:.40}")
        except BaseException:
            await exchange.aclose()
            raise
        return httpx2.Response(head["status"], headers=[*head.get("headers", ())], stream=exchange)

    async def aclose(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_TIME)
        for each in self._tasks:
            each.cancel()


def _scope(request: httpx2.Request, state: dict[str, Any]) -> AsgiMessage:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": request.method,
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "scheme": request.url.scheme,
        "path": request.url.path,
        "raw_path": request.url.raw_path.partition(b"?")[0],
        "query_string": request.url.query,
        "server": (request.url.host, request.url.port),
        "client": ("127.0.0.1", 0),
        "root_path": "",
        "state": state,
    }


class _Exchange(httpx2.AsyncByteStream):
    """One request of an application, and the body of its answer."""

    def __init__(self, body: bytes, deadline: float) -> None:
        self._body: bytes | None = body
        self._deadline = deadline
        self._messages: asyncio.Queue[AsgiMessage] = asyncio.Queue(MAX_WAITING)
        self._gone = asyncio.Event()
        self._is_complete = False
        self.task: asyncio.Task[None] | None = None

    async def run(self, app: AsgiApplication, scope: AsgiMessage) -> None:
        failure: AsgiMessage = {"type": "the end, without an answer"}
        try:
            await app(scope, self._receive, self._send)
        except Exception as error:
            # What a web server does: it logs the failure, and the caller learns that there was one.
            log.exception(
                "an application has failed", method=scope["method"], path=scope["path"], exc_info=error
            )
        if not self._is_complete:
            await self._messages.put(failure)

    async def _receive(self) -> AsgiMessage:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: AsgiMessage) -> None:
        if self._gone.is_set() or self._is_complete:
            return
        self._is_complete = message["type"] == "http.response.body" and not message.get("more_body", False)
        await self._messages.put(message)

    async def next(self) -> AsgiMessage:
        """Returns the next message; raises `httpx2.ReadTimeout` when the time is over."""
        try:
            async with asyncio.timeout_at(self._deadline):
                return await self._messages.get()
        except TimeoutError:
            raise httpx2.ReadTimeout("the application has not answered in time") from None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        is_over = False
        while not is_over:
            message = await self.next()
            if message["type"] != "http.response.body":
                raise httpx2.RemoteProtocolError("the application has not ended its answer")
            is_over = not message.get("more_body", False)
            if body := message.get("body", b""):
                yield bytes(body)

    async def aclose(self) -> None:
        self._gone.set()
        if self.task is not None and not self._is_complete:
            self.task.cancel()


@asynccontextmanager
async def application_lifespan(app: AsgiApplication) -> AsyncIterator[dict[str, Any]]:
    """Runs the lifespan of an application round the block, and yields the state that it leaves for requests.

    An application that has none is used as it is.

    Raises:
        LocalProtocolError: It says that it cannot start, or does not say anything for `START_TIME` seconds.
    """
    state: dict[str, Any] = {}
    to_app: asyncio.Queue[AsgiMessage] = asyncio.Queue(1)
    from_app: asyncio.Queue[AsgiMessage] = asyncio.Queue(2)

    async def run() -> None:
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": state}
        try:
            await app(scope, to_app.get, from_app.put)
        except Exception as error:
            # ASGI, Lifespan: an exception says that the application does not know this scope.
            log.debug("an application has no lifespan", error=repr(error)[:200])
        await from_app.put({"type": "the end"})

    async with asyncio.TaskGroup() as group:
        task = group.create_task(run())
        await to_app.put({"type": "lifespan.startup"})
        try:
            async with asyncio.timeout(START_TIME):
                answer = await from_app.get()
            if answer["type"] == "lifespan.startup.failed":
                raise LocalProtocolError(f"the application cannot start: {answer.get('message', '')!s:.500}")
            yield state
            await to_app.put({"type": "lifespan.shutdown"})
            async with asyncio.timeout(STOP_TIME):
                while not task.done() and (await from_app.get())["type"] == "lifespan.startup.complete":
                    pass
        except TimeoutError:
            raise LocalProtocolError(
                "the application has not said in time that it has started or ended"
            ) from None
        finally:
            task.cancel()


def get_in_process(app: AsgiApplication, path: str) -> bytes:
    """Returns what an application answers to one GET, from a loop of its own in a thread; the caller waits.

    Raises:
        LocalProtocolError: It answers with another status than 200, or not at all.
    """
    found: list[bytes | BaseException] = []

    async def get() -> bytes:
        async with httpx2.AsyncClient(transport=ApplicationTransport(app, START_TIME)) as client:
            answer = await client.get(f"http://localhost{path}")
        if answer.status_code != 200:
            raise LocalProtocolError(f"the application answers {path} with HTTP {answer.status_code}")
        return answer.content

    def run() -> None:
        try:
            found.append(asyncio.run(get()))
        except (LocalProtocolError, httpx2.HTTPError) as error:
            found.append(error)

    thread = threading.Thread(target=run, name="mcp-actors-get", daemon=True)
    thread.start()
    thread.join(2 * START_TIME)
    answer = found[0] if found else TimeoutError("it has not answered in time")
    if isinstance(answer, BaseException):
        raise LocalProtocolError(f"the application gives no {path}: {answer}")
    return answer
