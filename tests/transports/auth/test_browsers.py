"""Logins whose answer a person or a program carries over, and the choice among the ways to log in."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from mcp_actors.auth.effects import RedirectAnswer
from mcp_actors.errors import LoginFailed, LoginRequired, UrlRefused
from mcp_transports.auth import LoopbackBrowser, NoBrowser, PastedAnswer, ProgramRedirect, default_browser
from mcp_transports.auth.login import answer_of

URL = "https://as.example/authorize?state=right"
PATIENCE = 30


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
