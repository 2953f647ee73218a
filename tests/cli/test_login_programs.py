"""The programs and commands of the page on authorization, as it says, in an empty folder and on terminals."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mcp_actors.examples.issuer.__main__ import approve, serve
from tests.cli.conftest import LIMIT, Mcp, Terminal
from tests.interop.servers import free_port
from tests.pages import ROOT, programs, python_path

pytestmark = [pytest.mark.slow, pytest.mark.long]

PAGE = (ROOT / "docs/how-to/authorization.md").read_text()
ISSUE, SERVE = "127.0.0.1:9000", "127.0.0.1:8000"
ISSUER = "python -m mcp_actors.examples.issuer"
LOGIN = "mcp-actors login --no-browser --scope mcp:write http://127.0.0.1:8000/mcp"
CALL = "mcp-actors call http://127.0.0.1:8000/mcp note text=bread"
WHOAMI = "mcp-actors whoami http://127.0.0.1:8000/mcp"
LOGOUT = "mcp-actors logout http://127.0.0.1:8000/mcp"
# What a person does in a browser.
BROWSER = """
import subprocess, sys, urllib.request
command = [sys.executable, "-m", "mcp_actors.examples.issuer", "approve", sys.argv[1], "ann"]
address = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address).close()
"""


class Walk:
    """The page, with the addresses of this test, and the programs that serve."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.environment = environment
        self._places = {place: f"127.0.0.1:{free_port()}" for place in (ISSUE, SERVE)}
        for name, text in programs(PAGE).items():
            (folder / name).write_text(self._here(text))
        (folder / "browser.py").write_text(BROWSER)
        for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
            environment.pop(name, None)
        environment["XDG_STATE_HOME"] = str(folder / "state")
        self.browser = {"BROWSER": f"{sys.executable} {folder / 'browser.py'} %s"}

    def place(self, written: str) -> str:
        """Returns the address in this test of one on the page."""
        return self._places[written]

    def words(self, written: str) -> list[str]:
        """Returns the words of a command that the page shows, without the name of the program."""
        assert written in PAGE
        return shlex.split(self._here(written))[1:]

    @contextmanager
    def issuing(self, written: str = ISSUER) -> Iterator[Callable[[], str]]:
        with self._serving(
            [*self.words(written), "--listen", f"http://{self._places[ISSUE]}"], ISSUE
        ) as said:
            yield said

    @contextmanager
    def serving(self, written: str = "python notes.py") -> Iterator[Callable[[], str]]:
        with self._serving(self.words(written), SERVE) as said:
            yield said

    @contextmanager
    def _serving(self, words: list[str], place: str) -> Iterator[Callable[[], str]]:
        """Runs a program that serves, and yields a function that returns what it has said."""
        log = self.folder / f"{place}.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, *words], cwd=self.folder, env=self.environment, stdout=output, stderr=output
            )
        try:
            until_it_listens(f"http://{self._places[place]}/", process)
            yield log.read_text
        finally:
            process.terminate()
            assert process.wait(LIMIT) == 0, log.read_text()

    def approved(self, url: str) -> str:
        """The address that stands in for the one where a browser ends."""
        command = f"{ISSUER} approve 'URL' ann"
        words = [url if each == "URL" else each for each in self.words(command)]
        return self.ran(words).strip()

    def ran(self, words: list[str], code: int = 0, **environment: str) -> str:
        """Runs a Python program without a terminal, and returns what it prints."""
        done = subprocess.run(
            [sys.executable, *words],
            cwd=self.folder,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    def _here(self, text: str) -> str:
        for place, ours in self._places.items():
            text = text.replace(place, ours)
        return text


def until_it_listens(url: str, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        try:
            urllib.request.urlopen(url).close()
        except urllib.error.HTTPError:
            return  # it serves other paths
        except OSError:
            time.sleep(0.05)
            continue
        return
    pytest.fail(f"{process.args} ended with {process.returncode}")


def pasted(walk: Walk, session: Terminal) -> str:
    """Answers a login on a terminal alone, and returns all that the terminal has shown at the end."""
    session.until(lambda: "Paste the whole address" in session.text)
    url = re.search(r"http\S+/authorize\?\S+", session.text)
    assert url is not None
    session.type(f"{walk.approved(url[0])}\n".encode())
    assert session.wait() == 0, session.text
    return session.text


@pytest.fixture
def walk(tmp_path: Path, environment: dict[str, str]) -> Walk:
    environment["PYTHONPATH"] = python_path()
    return Walk(tmp_path, environment)


def test_two_programs_in_a_browser(walk: Walk, terminal: Callable[..., Terminal]) -> None:
    with walk.issuing() as said, walk.serving() as server_said:
        for number in (1, 2):
            session = terminal(program=walk.words("python login.py"), **walk.browser)
            assert session.wait() == 0, session.text
            assert session.text.endswith(f"{number} noted, the last for ann\n")
            assert ("To log in" in session.text) == (number == 1)
    assert "FOR THIS MACHINE ONLY" in said()
    assert said().count("ann let 'mcp-actors' use") == 1
    assert server_said() == ""


def test_a_terminal_alone(walk: Walk, terminal: Callable[..., Terminal], mcp: Mcp) -> None:
    with walk.issuing(), walk.serving():
        assert "logged in to" in pasted(walk, terminal(*walk.words(LOGIN)))
        assert mcp(*walk.words(CALL)).stdout == "1 noted, the last for ann\n"
        assert "ann (as the token says)" in mcp(*walk.words(WHOAMI)).stdout
        # The program and the commands have one file.
        assert walk.ran(walk.words("python login.py")) == "2 noted, the last for ann\n"
        assert mcp(*walk.words(LOGOUT)).returncode == 0
        assert mcp(*walk.words(WHOAMI)).returncode == 3


def test_a_login_with_too_few_scopes(walk: Walk, terminal: Callable[..., Terminal], mcp: Mcp) -> None:
    without = [each for each in walk.words(LOGIN) if each not in ("--scope", "mcp:write")]
    with walk.issuing(), walk.serving():
        pasted(walk, terminal(*without))
        lacking = mcp(*walk.words(CALL))
        assert lacking.returncode == 3
        (again,) = re.findall(r"mcp-actors (login .*)$", lacking.stderr, re.MULTILINE)
        pasted(walk, terminal(*shlex.split(again), "--no-browser"))
        assert mcp(*walk.words(CALL)).stdout == "1 noted, the last for ann\n"


def test_a_program_on_a_terminal_alone(walk: Walk, terminal: Callable[..., Terminal]) -> None:
    with walk.issuing(), walk.serving():
        session = terminal(program=walk.words("python login.py"))
        assert pasted(walk, session).endswith("1 noted, the last for ann\n")


def test_a_machine_with_a_secret(walk: Walk) -> None:
    with walk.issuing() as said, walk.serving():
        export = re.search(r"export MACHINE_SECRET=(\S+)", said())
        assert export is not None
        assert walk.ran(walk.words("python machine.py"), MACHINE_SECRET=export[1]) == (
            "1 noted, the last for machine\n"
        )
        assert export[1] not in said().replace(export[0], "")
        assert "invalid_client" in walk.ran(walk.words("python machine.py"), code=1, MACHINE_SECRET="wrong")


def test_a_machine_with_a_key(walk: Walk) -> None:
    lines = re.findall(r"^openssl .*$", PAGE, re.MULTILINE)
    subprocess.run(["bash", "-ec", "\n".join(lines)], cwd=walk.folder, check=True, capture_output=True)
    (started,) = re.findall(rf"^{ISSUER} .*--client-key .*$", PAGE, re.MULTILINE)
    with walk.issuing(started) as said, walk.serving():
        assert walk.ran(["robot.py"]) == "1 noted, the last for robot\n"
        assert "SECRET" not in said()


def test_tokens_that_are_bound_to_a_key(walk: Walk, terminal: Callable[..., Terminal]) -> None:
    with walk.issuing() as said:
        # The page puts one program in the place of the other, with the login that is there.
        with walk.serving():
            assert terminal(program=walk.words("python login.py"), **walk.browser).wait() == 0
        with walk.serving("python bound.py"):
            session = terminal(program=walk.words("python login.py"), **walk.browser)
            assert session.wait() == 0, session.text
            assert session.text.endswith("1 noted, the last for ann\n")
            export = re.search(r"export MACHINE_SECRET=(\S+)", said())
            assert export is not None
            assert walk.ran(walk.words("python machine.py"), MACHINE_SECRET=export[1]) == (
                "2 noted, the last for machine\n"
            )
    tokens = [line for line in said().splitlines() if line.startswith("a token for")]
    assert [line.endswith("bound to a key") for line in tokens] == [False, True, True]


# -- The command line -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--listen", "http://0.0.0.0:9000"], "listens at this machine's own addresses alone"),
        (["--listen", "https://login.example.com"], "listens at this machine's own addresses alone"),
        (["--user", "ann"], "write NAME=VALUE in place of 'ann'"),
        (["--user", "ann=a b"], "is no scope"),
        (["--client-key", "robot=missing.pem"], "--client-key is for a program that --client names"),
        (["--client", "robot=a", "--client-key", "robot=missing.pem"], "No such file"),
        (["--client", "robot=a", "--client-key", f"robot={__file__}"], "not a public key in PEM"),
    ],
)
def test_wrong_words_are_answered_with_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        serve(words)
    said = capsys.readouterr().err
    assert (ended.value.code, sentence in said, said.count("\n")) == (2, True, 1)


def test_an_address_that_is_taken_is_said_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(SystemExit, match=r"^cannot listen on .*$"):
            serve(["--listen", f"http://127.0.0.1:{taken.getsockname()[1]}"])


def test_a_login_that_cannot_be_answered_is_said_in_one_line(walk: Walk) -> None:
    with walk.issuing():
        place = walk.place(ISSUE)
        for url, said in (
            (f"http://{place}/authorize?client_id=nobody", "this client is not known here"),
            (f"http://{place}/jwks", "not the page of a login"),
            (f"http://{place}/elsewhere", "answers 404"),
            (f"http://{place}/a b", "cannot be asked"),
            (f"http://{place}/authorize?client_id=https://127.0.0.1:1/client.json", "a loopback address"),
            ("http://127.0.0.1:1/authorize", "cannot be asked"),
        ):
            with pytest.raises(SystemExit, match=said) as ended:
                approve([url, "ann"])
            assert "\n" not in str(ended.value)


@pytest.mark.parametrize(
    "url", ["https://login.example.com/authorize?x=1", "file://localhost/etc/hosts", "x"]
)
def test_a_login_elsewhere_is_not_answered_here(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        approve([url, "ann"])
    assert "the login is not at this machine" in capsys.readouterr().err


def test_a_secret_of_the_environment_is_used_and_not_shown(walk: Walk) -> None:
    walk.environment["MACHINE_SECRET"] = "of-my-own-choice"
    with walk.issuing() as said, walk.serving():
        assert walk.ran(walk.words("python machine.py")) == "1 noted, the last for machine\n"
        assert "of-my-own-choice" not in said()


def test_without_the_library_it_says_how_to_install_it(walk: Walk) -> None:
    (walk.folder / "joserfc").mkdir()
    (walk.folder / "joserfc" / "__init__.py").write_text("raise ModuleNotFoundError('joserfc')\n")
    walk.environment["PYTHONPATH"] = os.pathsep.join([str(walk.folder), walk.environment["PYTHONPATH"]])
    said = walk.ran(walk.words(ISSUER), code=1)
    assert "pip install 'joserfc>=1.8'" in said
    assert said.count("\n") == 1
