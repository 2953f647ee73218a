"""The machines' logins, performed in the browser and the store that users have: what is left when one ends anywhere."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trio
import trio.testing

from mcp_actors.auth import UrlPolicy
from mcp_actors.auth.effects import (
    LoadRecord,
    Lock,
    LogIn,
    OpenRedirect,
    RedirectAnswer,
    Steps,
    SwapRecord,
    Unlock,
)
from mcp_actors.errors import LoginFailed
from mcp_transports.auth import FileTokenStore, LoopbackBrowser
from mcp_transports.auth.authorizer import Performer
from mcp_transports.auth.fetcher import Fetcher

URL = "https://as.example/authorize"
PATIENCE = 20


def machine(uris: list[str], *, locks: bool = False) -> Steps[RedirectAnswer]:
    """Logs in and stores the answer, as the client's machine does."""
    if locks:
        yield Lock("key")
    uri = yield OpenRedirect()
    uris.append(uri)
    answer: RedirectAnswer = yield LogIn(f"{URL}?to={uri}", bool)
    found = yield LoadRecord("key")
    yield SwapRecord("key", None if found is None else found.generation, {"whole": "x" * 1000, "code": 1})
    if locks:
        yield Unlock("key")
    return answer


async def visit(url: str) -> None:
    uri = urlsplit(url.partition("?to=")[2])
    async with await trio.open_tcp_stream("127.0.0.1", uri.port or 0) as stream:
        await stream.send_all(f"GET {uri.path}?code=1 HTTP/1.1\r\nhost: {uri.netloc}\r\n\r\n".encode())
        await stream.receive_some()


def performer(path: Path, *, opens: object = visit, login_timeout: float = PATIENCE) -> Performer:
    browser = LoopbackBrowser(open=opens)  # type: ignore[arg-type]
    fetcher = Fetcher(UrlPolicy(), "https://mcp.example/mcp")
    return Performer(fetcher, FileTokenStore(path), lambda: browser, login_timeout)


def is_free(uri: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", urlsplit(uri).port or 0)) != 0


async def test_a_login_is_performed_and_stored(tmp_path: Path) -> None:
    uris: list[str] = []
    asked: list[bool] = []
    with trio.fail_after(PATIENCE):
        answer = await performer(tmp_path / "tokens.json").run(machine(uris, locks=True), asked.append)
    assert answer == [("code", "1")]
    assert asked == [True, False]
    assert is_free(uris[0])
    found = await FileTokenStore(tmp_path / "tokens.json").load("key")
    assert found is not None
    assert found.generation == 1


async def test_a_person_who_does_not_come_back_leaves_nothing_open(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    uris: list[str] = []
    waits = performer(tmp_path / "tokens.json", opens=lambda url: None, login_timeout=300)
    start = trio.current_time()
    with pytest.raises(LoginFailed, match="nobody logged in"):
        await waits.run(machine(uris), lambda asked: None)
    assert 300 <= trio.current_time() - start < 310
    assert is_free(uris[0])


async def test_cancelled_anywhere_nothing_is_left(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    works = performer(path)
    uris: list[str] = []
    ended, generation = 0, 0
    for ticks in range(0, 160, 2):
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:

                async def cancel(scope: trio.CancelScope = scope, ticks: int = ticks) -> None:
                    for _ in range(ticks):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()

                nursery.start_soon(cancel)
                await works.run(machine(uris, locks=True), lambda asked: None)
            ended += scope.cancelled_caught
        assert all(is_free(uri) for uri in uris)
        found = await FileTokenStore(path).load("key")
        now = 0 if found is None else found.generation
        assert now in (generation, generation + 1)
        assert found is None or found.value == {"whole": "x" * 1000, "code": 1}
        generation = now
        assert not [each for each in os.listdir(tmp_path) if each.endswith(".new")]
    assert ended
    with trio.fail_after(PATIENCE):
        assert await works.run(machine(uris, locks=True), lambda asked: None)
