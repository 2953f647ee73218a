"""A login that comes back to a port of this machine: what it takes for its answer, and what it leaves behind."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit

import attrs
import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from mcp_actors.auth.effects import RedirectAnswer
from mcp_actors.errors import LoginFailed, UrlRefused
from mcp_transports.auth import LoopbackBrowser
from mcp_transports.auth.login import open_system_browser

URL = "https://as.example/authorize?state=right"
# Redirect URIs of a registration that do not lead here.
OTHERS = (
    "https://other.example/cb",
    "http://8.8.8.8:1/cb",
    "http://[::1",
    "http://127.0.0.1:99999/",
    "app:/cb",
    "",
)
GOOD = "/callback?code=c%2Bd&state=right&iss=https%3A%2F%2Fas.example"
PATIENCE = 20


def accepts(answer: RedirectAnswer) -> bool:
    return [value for name, value in answer if name == "state"] == ["right"]


async def ask(
    uri: str,
    target: str,
    method: str = "GET",
    host: str | None = None,
    extra: bytes = b"",
    address: str = "127.0.0.1",
) -> bytes:
    """Sends one request to the redirect and returns all that comes back."""
    parts = urlsplit(uri)
    assert parts.port is not None
    stream = await trio.open_tcp_stream(address, parts.port)
    async with stream:
        head = f"{method} {target} HTTP/1.1\r\nhost: {host or parts.netloc}\r\nconnection: close\r\n"
        try:
            await stream.send_all(head.encode() + extra + b"\r\n")
            return b"".join([bytes(piece) async for piece in stream])
        except trio.BrokenResourceError:
            return b""


def status(answer: bytes) -> int:
    return int(answer.split(b" ")[1])


@attrs.define
class Person:
    """Gets URLs to open, and does something with the redirect instead."""

    does: Callable[[str], Awaitable[None]]
    uri: str = ""
    opened: list[str] = attrs.Factory(list)

    async def open(self, url: str) -> None:
        self.opened.append(url)
        await self.does(self.uri)


async def log_in(
    does: Callable[[str], Awaitable[None]],
    registered: tuple[str, ...] = (),
    url: str = URL,
    **options: str | int,
) -> tuple[RedirectAnswer, Person]:
    person = Person(does)
    browser = LoopbackBrowser(open=person.open, **options)  # type: ignore[arg-type]
    with trio.fail_after(PATIENCE):
        async with browser.open_redirect(registered) as redirect:
            person.uri = redirect.uri
            return await redirect.log_in(url, accepts), person


def is_free(port: int) -> bool:
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            if probe.connect_ex((address, port)) == 0:
                return False
    return True


def port_of(uri: str) -> int:
    port = urlsplit(uri).port
    assert port is not None
    return port


async def test_the_answer_is_returned_and_nothing_listens_any_more() -> None:
    pages: list[bytes] = []

    async def person(uri: str) -> None:
        pages.append(await ask(uri, GOOD))

    answer, who = await log_in(person)
    assert answer == [("code", "c+d"), ("state", "right"), ("iss", "https://as.example")]
    assert who.opened == [URL]
    assert who.uri.startswith("http://127.0.0.1:")
    assert who.uri.endswith("/callback")
    assert is_free(port_of(who.uri))


async def test_the_page_is_constant_and_says_nothing_of_the_request() -> None:
    pages: list[bytes] = []

    async def person(uri: str) -> None:
        for target in ("/callback?state=wrong&code=<script>", GOOD.replace("c%2Bd", "<script>")):
            page = (await ask(uri, target)).lower()
            assert b"script" not in page
            assert b"cache-control: no-store\r\n" in page
            assert b"referrer-policy: no-referrer\r\n" in page
            pages.append(page)

    # The last page may come when the opening is no longer waited for.
    async with trio.open_nursery() as nursery:
        done = trio.Event()

        async def beside(uri: str) -> None:
            async def go() -> None:
                await person(uri)
                done.set()

            nursery.start_soon(go)

        await log_in(beside)
        with trio.fail_after(PATIENCE):
            await done.wait()
    assert [status(page) for page in pages] == [400, 200]


async def hostile(uri: str) -> list[int]:
    port = port_of(uri)
    found = [
        status(await ask(uri, "/favicon.ico")),
        status(await ask(uri, "/callback/x?state=right")),
        status(await ask(uri, "//callback?state=right")),
        status(await ask(uri, "/callback?state=wrong&code=x")),
        status(await ask(uri, "/callback?code=x")),
        status(await ask(uri, "/callback?state=right&state=right&code=x")),
        status(await ask(uri, "/callback?" + "a&" * 100 + "state=right")),
        status(await ask(uri, GOOD, "POST")),
        status(await ask(uri, GOOD, "HEAD")),
        status(await ask(uri, GOOD, host="evil.example")),
        status(await ask(uri, GOOD, host=f"evil.example:{port}")),
        status(await ask(uri, GOOD, host=f"localhost:{port}")),
        status(await ask(uri, GOOD, host="127.0.0.1")),
        status(await ask(uri, GOOD, extra=b"host: 127.0.0.1\r\n")),
    ]
    large = await ask(uri, GOOD + "x" * 20_000)
    assert status(large) in (414, 431)
    large = await ask(uri, GOOD, extra=b"x: " + b"y" * 1_000_000 + b"\r\n")
    assert large == b"" or status(large) == 431
    return found


async def test_malicious_requests_are_refused_and_the_login_goes_on() -> None:
    found: list[int] = []

    async with trio.open_nursery() as nursery:

        async def beside(uri: str) -> None:
            async def go() -> None:
                # Peers that begin a request and never end it.
                async with AsyncExitStack() as stack:
                    for _ in range(10):
                        slow = await trio.open_tcp_stream("127.0.0.1", port_of(uri))
                        await stack.enter_async_context(slow)
                        await slow.send_all(b"GET /callback?")
                    found.extend(await hostile(uri))
                    await ask(uri, GOOD)

            nursery.start_soon(go)

        answer, who = await log_in(beside)
    assert found == [404, 404, 404, 400, 400, 400, 400, 405, 405, 400, 400, 400, 400, 400]
    assert answer[0] == ("code", "c+d")
    assert is_free(port_of(who.uri))


async def test_a_second_answer_is_refused() -> None:
    person = Person(lambda uri: ask_once(uri))
    codes: list[int] = []

    async def ask_once(uri: str) -> None:
        codes.append(0)

    async with LoopbackBrowser(open=person.open).open_redirect() as redirect:
        assert status(await ask(redirect.uri, GOOD)) == 400  # nobody logs in yet
        async with trio.open_nursery() as nursery:
            answers: list[RedirectAnswer] = []

            async def wait() -> None:
                answers.append(await redirect.log_in(URL, accepts))

            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            assert status(await ask(redirect.uri, GOOD)) == 200
        assert status(await ask(redirect.uri, GOOD)) == 400
        assert status(await ask(redirect.uri, GOOD.replace("c%2Bd", "other"))) == 400
    assert codes == [0]
    assert answers[0][0] == ("code", "c+d")


# -- ports --------------------------------------------------------------------------------------------------------


async def good(uri: str) -> None:
    await ask(uri, f"{urlsplit(uri).path}?state=right")


def taken_port() -> tuple[socket.socket, int]:
    taken = socket.create_server(("127.0.0.1", 0))
    return taken, taken.getsockname()[1]


async def test_a_registered_redirect_is_used_as_it_is() -> None:
    taken, port = taken_port()
    taken.close()
    registered = f"http://localhost:{port}/back"
    _, who = await log_in(good, (*OTHERS, registered))
    assert who.uri == registered


async def test_another_port_is_used_if_that_of_the_registration_is_taken() -> None:
    taken, port = taken_port()
    with taken:
        _, who = await log_in(good, (f"http://127.0.0.1:{port}/back", f"http://[::1]:{port}/x"))
    assert port_of(who.uri) != port
    assert who.uri == f"http://127.0.0.1:{port_of(who.uri)}/back"


async def test_a_registered_redirect_without_a_port_gets_one() -> None:
    _, who = await log_in(good, ("http://[::1]/back",))
    assert who.uri == f"http://[::1]:{port_of(who.uri)}/back"


async def test_a_port_that_was_asked_for_is_used_or_said_to_be_taken() -> None:
    taken, port = taken_port()
    with taken:
        with pytest.raises(LoginFailed, match=f"port {port}"):
            await log_in(good, port=port)
    _, who = await log_in(good, ("http://127.0.0.1:1/back",), host="localhost", port=port)
    assert who.uri == f"http://localhost:{port}/callback"


async def test_a_name_of_this_machine_leads_to_either_address() -> None:
    async def by_ipv6(uri: str) -> None:
        await ask(uri, GOOD, address="::1")

    answer, _ = await log_in(by_ipv6, host="localhost")
    assert answer


# -- cancellation -------------------------------------------------------------------------------------------------


async def test_cancelled_anywhere_nothing_listens_any_more() -> None:
    seen: list[str] = []
    finished = 0
    for ticks in range(60):

        async def person(uri: str) -> None:
            seen.append(uri)
            await good(uri)

        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:

                async def cancel(scope: trio.CancelScope = scope, ticks: int = ticks) -> None:
                    for _ in range(ticks):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()

                nursery.start_soon(cancel)
                await log_in(person)
                finished += 1
        assert all(is_free(port_of(uri)) for uri in seen)
        seen.clear()
    await log_in(good)
    assert finished < 60


async def test_a_crash_of_the_listener_ends_the_login(monkeypatch: pytest.MonkeyPatch) -> None:
    uris: list[str] = []

    async def person(uri: str) -> None:
        uris.append(uri)
        raise_in_listener()

    def raise_in_listener() -> None:
        for task in tasks():
            if task.name.startswith("login listener"):
                task._attempt_abort(boom)  # type: ignore[attr-defined]

    def tasks() -> list[trio.lowlevel.Task]:
        root = trio.lowlevel.current_task()
        return [child for nursery in root.child_nurseries for child in nursery.child_tasks]

    def boom() -> None:
        raise ValueError("injected")

    with capture_logs() as logs, pytest.raises(LoginFailed, match="log in again"):
        await log_in(person)
    assert [each["event"] for each in logs] == ["login listener failed"]
    assert is_free(port_of(uris[0]))


# -- URLs of the person ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "file:///etc/passwd",
        "data:text/html,x",
        "http://as.example/authorize",
        "https://as.example/\nx",
        "https://as.example/ --flag",
        "--new-window https://as.example/",
        "https://me@as.example/",
    ],
)
async def test_urls_that_are_not_for_a_browser_are_not_opened(url: str) -> None:
    opened: list[str] = []
    async with LoopbackBrowser(open=opened.append).open_redirect() as redirect:
        with pytest.raises(UrlRefused):
            await redirect.log_in(url, accepts)
    assert opened == []


async def test_the_system_browser_gets_the_url_as_one_argument_and_no_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "browser"
    record = tmp_path / "arguments"
    script.write_text(
        f"#!{sys.executable}\nimport sys\nprint('noise')\nopen({str(record)!r}, 'w').write(repr(sys.argv[1:]))\n"
    )
    script.chmod(0o700)
    monkeypatch.setenv("BROWSER", str(script))
    url = f"https://as.example/a;touch${{IFS}}{tmp_path}/b?x=$(touch%20{tmp_path}/c)&touch=`id`|id"
    with trio.fail_after(PATIENCE):
        await open_system_browser(url)
    assert record.read_text() == repr([url])
    assert sorted(os.listdir(tmp_path)) == ["arguments", "browser"]
    out, err = capfd.readouterr()
    assert (out, err.count(url), "noise" in err) == ("", 1, False)


async def test_a_module_in_the_current_folder_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A folder of somebody else, such as a repository that was cloned just now.
    (tmp_path / "webbrowser.py").write_text("open('taken over', 'w')\ndef open(url):\n    return True\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BROWSER", "/bin/true")
    with trio.fail_after(PATIENCE):
        await open_system_browser(URL)
    assert os.listdir(tmp_path) == ["webbrowser.py"]


async def test_without_a_browser_the_url_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mcp_transports.auth.login.OPENER", "raise SystemExit(1)")
    with capture_logs() as logs:
        await open_system_browser(URL)
        monkeypatch.setattr("sys.executable", "/nonexistent/python")
        await open_system_browser(URL)
    assert capsys.readouterr().err.count(URL) == 2
    assert [each["event"] for each in logs] == ["no browser could be opened"] * 2
    assert URL not in repr(logs)


async def test_a_browser_that_stays_in_the_foreground_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mcp_transports.auth.login.OPENER", "import time; time.sleep(600)")
    answers: list[RedirectAnswer] = []
    with trio.fail_after(PATIENCE):
        async with LoopbackBrowser().open_redirect() as redirect, trio.open_nursery() as nursery:

            async def log_in() -> None:
                answers.append(await redirect.log_in(URL, accepts))

            nursery.start_soon(log_in)
            while not answers:
                await ask(redirect.uri, GOOD)
    assert answers[0][0] == ("code", "c+d")
