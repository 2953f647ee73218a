"""Logins whose answer a person or a program carries over, and the choice among the ways to log in."""

from __future__ import annotations

import os
import pty
import signal
import socket
import subprocess
import sys
import termios
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from mcp_actors.auth.effects import RedirectAnswer
from mcp_actors.errors import LoginFailed, LoginRequired, UrlRefused
from mcp_transports.auth import LoopbackBrowser, NoBrowser, PastedAnswer, ProgramRedirect, default_browser
from mcp_transports.auth.login import answer_of, open_system_browser

URL = "https://as.example/authorize?state=right"
PATIENCE = 90


def accepts(answer: RedirectAnswer) -> bool:
    return [value for name, value in answer if name == "state"] == ["right"]


# -- a terminal ---------------------------------------------------------------------------------------------------


class Person:
    """The other end of a terminal."""

    def __init__(self) -> None:
        self.end, self._device = pty.openpty()
        self.path = os.ttyname(self._device)

    def types(self, text: str) -> None:
        os.write(self.end, text.encode())

    def settings(self) -> list[object]:
        return termios.tcgetattr(self._device)

    def hangs_up(self) -> None:
        os.close(self._device)
        os.close(self.end)
        self.end = -1

    def close(self) -> None:
        if self.end >= 0:
            self.hangs_up()


@pytest.fixture
def person() -> Iterator[Person]:
    person = Person()
    yield person
    person.close()


async def paste(person: Person, text: str, *, registered: tuple[str, ...] = ()) -> RedirectAnswer:
    with trio.fail_after(PATIENCE):
        async with PastedAnswer(terminal=person.path).open_redirect(registered) as redirect:
            person.types(text)
            return await redirect.log_in(URL, accepts)


@pytest.mark.slow
async def test_the_answer_is_pasted_and_the_terminal_is_as_it_was(
    person: Person, capsys: pytest.CaptureFixture[str]
) -> None:
    before = person.settings()
    answer = await paste(person, "  http://127.0.0.1:49731/callback?code=c%2Bd&state=right \r\n")
    assert answer == [("code", "c+d"), ("state", "right")]
    assert person.settings() == before
    out, err = capsys.readouterr()
    assert (out, URL in err) == ("", True)
    assert "c%2Bd" not in err


async def test_what_is_no_answer_is_asked_for_again(
    person: Person, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = ["", "rubbish", "http://x/?code=1&state=wrong", "http://[::1", "?" + "a&" * 100]
    for text in wrong:
        answer_task: list[RedirectAnswer] = []
        async with trio.open_nursery() as nursery:
            async with PastedAnswer(terminal=person.path).open_redirect() as redirect:

                async def log_in(
                    redirect: object = redirect, found: list[RedirectAnswer] = answer_task
                ) -> None:
                    found.append(await redirect.log_in(URL, accepts))  # type: ignore[attr-defined]

                nursery.start_soon(log_in)
                person.types(text + "\n")
                with trio.fail_after(PATIENCE):
                    while "not the answer" not in capsys.readouterr().err:
                        await trio.testing.wait_all_tasks_blocked(0.001)
                    person.types("code=1&state=right\n")
                    while not answer_task:
                        await trio.testing.wait_all_tasks_blocked(0.001)
        assert answer_task == [[("code", "1"), ("state", "right")]]


async def test_a_long_answer_is_not_cut(person: Person) -> None:
    code = "x" * 9000
    answers: list[RedirectAnswer] = []
    async with trio.open_nursery() as nursery, PastedAnswer(terminal=person.path).open_redirect() as redirect:

        async def log_in() -> None:
            answers.append(await redirect.log_in(URL, accepts))

        nursery.start_soon(log_in)
        text = f"http://127.0.0.1/callback?code={code}&state=right\n".encode()
        with trio.fail_after(PATIENCE):
            while text:
                text = text[os.write(person.end, text[:1000]) :]
                await trio.testing.wait_all_tasks_blocked(0.001)
            while not answers:
                await trio.testing.wait_all_tasks_blocked(0.001)
    assert answers == [[("code", code), ("state", "right")]]


async def test_a_line_can_be_corrected(person: Person) -> None:
    assert await paste(person, "code=13\x7f2&state=wrong\b\b\b\b\bright\n") == [
        ("code", "12"),
        ("state", "right"),
    ]


@pytest.mark.parametrize("text", ["\x04", "half an answer\x04", "x" * 3000])
async def test_a_person_may_give_up(person: Person, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_transports.auth.terminal.MAX_LINE", 2000)
    before = person.settings()
    with pytest.raises(LoginFailed, match="given up"):
        await paste(person, text)
    assert person.settings() == before


async def test_a_terminal_that_goes_away_ends_the_login(person: Person) -> None:
    async with PastedAnswer(terminal=person.path).open_redirect() as redirect:
        person.hangs_up()
        with trio.fail_after(PATIENCE), pytest.raises(LoginFailed, match="given up"):
            await redirect.log_in(URL, accepts)


async def test_cancelled_the_terminal_is_as_it_was(person: Person) -> None:
    before = person.settings()
    async with trio.open_nursery() as nursery:

        async def log_in() -> None:
            async with PastedAnswer(terminal=person.path).open_redirect() as redirect:
                assert person.settings() != before
                await redirect.log_in(URL, accepts)

        nursery.start_soon(log_in)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert person.settings() == before


INTERRUPTED = """
import sys, trio
from mcp_transports.auth import PastedAnswer

async def main():
    async with PastedAnswer(terminal=sys.argv[1]).open_redirect() as redirect:
        await redirect.log_in("https://as.example/authorize", bool)

trio.run(main)
"""


async def test_an_interrupt_ends_the_login_and_the_terminal_is_as_it_was(person: Person) -> None:
    before = person.settings()
    async with trio.open_nursery() as nursery:
        command = [sys.executable, "-c", INTERRUPTED, person.path]

        async def run(*, task_status: trio.TaskStatus[trio.Process]) -> None:
            await trio.run_process(command, check=False, stderr=subprocess.PIPE, task_status=task_status)

        process: trio.Process = await nursery.start(run)
        assert process.stderr is not None
        with trio.fail_after(PATIENCE):
            shown = b""
            while b"not shown" not in shown:
                shown += await process.stderr.receive_some()
            process.send_signal(signal.SIGINT)
            assert await process.wait() != 0
    assert person.settings() == before


async def test_without_a_terminal_somebody_must_log_in_elsewhere() -> None:
    for path in ("/nonexistent/tty", os.devnull):
        with pytest.raises(LoginRequired, match="mcp-actors login"):
            async with PastedAnswer(terminal=path).open_redirect():
                pytest.fail("there is no terminal")


async def test_the_redirect_is_the_registered_one(person: Person) -> None:
    for own, registered, expected in [
        (None, (), "http://127.0.0.1:49731/callback"),
        (None, ("https://other.example/", "http://localhost:3/x"), "http://localhost:3/x"),
        ("https://mine.example/cb", ("http://localhost:3/x",), "https://mine.example/cb"),
    ]:
        async with PastedAnswer(own, terminal=person.path).open_redirect(registered) as redirect:
            assert redirect.uri == expected


# -- an embedding program -----------------------------------------------------------------------------------------


async def test_a_program_hands_the_answer_over() -> None:
    shown: list[str] = []
    browser = ProgramRedirect("https://app.example/cb", shown.append)
    answers: list[RedirectAnswer] = []

    async def log_in() -> None:
        async with browser.open_redirect() as redirect:
            assert redirect.uri == "https://app.example/cb"
            answers.append(await redirect.log_in(URL, accepts))

    assert not browser.finish("https://app.example/cb?code=1&state=right")
    for answer in (
        "https://app.example/cb?code=1&state=right",
        "code=1&state=right",
        {"code": "1", "state": "right"},
        [("code", "1"), ("state", "right")],
    ):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log_in)
            await trio.testing.wait_all_tasks_blocked()
            assert not browser.finish("code=1&state=wrong")
            assert not browser.finish([("code", "1"), ("state", "right"), ("state", "right")])
            assert browser.finish(answer)
            assert not browser.finish(answer)
    assert [dict(each) for each in answers] == [{"code": "1", "state": "right"}] * 4
    assert shown == [URL] * 4
    assert repr(browser) == "<ProgramRedirect https://app.example/cb: 0 waiting>"


async def test_several_logins_get_the_answers_that_are_theirs() -> None:
    async def show(url: str) -> None:
        await trio.lowlevel.checkpoint()

    browser = ProgramRedirect("https://app.example/cb", show)
    answers: dict[str, RedirectAnswer] = {}

    async def log_in(state: str) -> None:
        async with browser.open_redirect() as redirect:
            answers[state] = await redirect.log_in(URL, lambda answer: ("state", state) in answer)

    async with trio.open_nursery() as nursery:
        for state in ("one", "two", "three"):
            nursery.start_soon(log_in, state)
        await trio.testing.wait_all_tasks_blocked()
        assert browser.finish("state=two&code=2")
        assert browser.finish("state=one&code=1")
        await trio.testing.wait_all_tasks_blocked()
        assert repr(browser).endswith(": 1 waiting>")
        nursery.cancel_scope.cancel()
    assert answers == {"two": [("state", "two"), ("code", "2")], "one": [("state", "one"), ("code", "1")]}
    assert not browser.finish("state=three&code=3")


async def test_a_program_is_not_shown_what_is_no_url_for_a_browser(person: Person) -> None:
    shown: list[str] = []
    for browser in (
        ProgramRedirect("https://app.example/cb", shown.append),
        PastedAnswer(terminal=person.path),
    ):
        async with browser.open_redirect() as redirect:
            for url in ("javascript:alert(1)", "file:///x", "http://as.example/", "https://a/\x1b[2J"):
                with pytest.raises(UrlRefused):
                    await redirect.log_in(url, accepts)
    assert shown == []


# -- the choice ---------------------------------------------------------------------------------------------------


async def test_nobody_is_there() -> None:
    with pytest.raises(LoginRequired, match="mcp-actors login") as caught:
        async with NoBrowser().open_redirect():
            pytest.fail("nobody is there")
    assert caught.value.url is None


@pytest.mark.parametrize(
    ("terminals", "environment", "expected"),
    [
        ("in err", {"DISPLAY": ":0"}, LoopbackBrowser),
        ("in err", {"WAYLAND_DISPLAY": "w"}, LoopbackBrowser),
        ("in err", {"BROWSER": "x"}, LoopbackBrowser),
        ("in err", {}, PastedAnswer),
        ("in", {"DISPLAY": ":0"}, NoBrowser),
        ("err", {"DISPLAY": ":0"}, NoBrowser),
        ("", {}, NoBrowser),
    ],
)
def test_the_way_to_log_in_suits_the_process(
    monkeypatch: pytest.MonkeyPatch, terminals: str, environment: dict[str, str], expected: type
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("sys.stdin.isatty", lambda: "in" in terminals, raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: "err" in terminals, raising=False)
    assert type(default_browser()) is expected


def test_an_answer_is_taken_out_of_a_url_or_a_query() -> None:
    assert answer_of("http://x/cb?a=1&b=&a=2#top") == [("a", "1"), ("b", ""), ("a", "2")]
    assert answer_of("?a=%26&b=x+y") == [("a", "&"), ("b", "x y")]
    assert answer_of("http://x/cb") == []
    assert answer_of("&".join(["a=1"] * 65)) == ()


@given(st.text() | st.text(alphabet="?#&=%:/[]ab+;"))
def test_whatever_is_pasted_has_parameters_or_none(text: str) -> None:
    answer = answer_of(text)
    assert len(answer) <= 64
    assert all(isinstance(name, str) and isinstance(value, str) for name, value in answer)
    again = answer_of("http://x/cb?" + urlencode(answer))
    assert list(again) == list(answer)


# -- A login that comes back to a port of this machine: what it takes for its answer, and what it leaves behind ---

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
PATIENCE_LOOPBACK = 90


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
class PersonLoopback:
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
) -> tuple[RedirectAnswer, PersonLoopback]:
    person = PersonLoopback(does)
    browser = LoopbackBrowser(open=person.open, **options)  # type: ignore[arg-type]
    with trio.fail_after(PATIENCE_LOOPBACK):
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
        with trio.fail_after(PATIENCE_LOOPBACK):
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
    person = PersonLoopback(lambda uri: ask_once(uri))
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
    with trio.fail_after(PATIENCE_LOOPBACK):
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
    with trio.fail_after(PATIENCE_LOOPBACK):
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
    with trio.fail_after(PATIENCE_LOOPBACK):
        async with LoopbackBrowser().open_redirect() as redirect, trio.open_nursery() as nursery:

            async def log_in() -> None:
                answers.append(await redirect.log_in(URL, accepts))

            nursery.start_soon(log_in)
            while not answers:
                await ask(redirect.uri, GOOD)
    assert answers[0][0] == ("code", "c+d")
