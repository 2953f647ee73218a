"""What the README and the pages in ``docs`` show is run, or compared with the code.

``python -m tests.test_readme`` writes the table of `TASKS` into ``docs/why/supervision.md`` again.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import pty
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import mcp_actors
from benchmarks.suite.server import free_port
from mcp_actors.supervision.task_kinds import TASKS
from mcp_transports.http.server import HttpLimits
from tests.pages import (
    PAGES,
    README,
    ROOT,
    RUN_BY_HAND,
    WITH_FRAMEWORKS,
    WITH_PROGRAMS,
    anchors,
    blocks,
    commands,
    files_beside,
    is_server,
    local_addresses,
    name_in,
    outputs,
    programs,
    python_path,
    with_table,
)

pytestmark = [pytest.mark.slow, pytest.mark.long]

SUPERVISION = ROOT / "docs" / "why" / "supervision.md"
SOURCES = (ROOT / "mcp_actors", ROOT / "transports" / "mcp_transports")
SECONDS = 180  # against programs that hang; a busy machine needs twenty of them for one

# Without pytest-asyncio, which warns where its settings are missing.
PYTEST = ["python", "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:asyncio"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in programs().items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def environment() -> dict[str, str]:
    """`python` and `mcp-actors` are those of this environment."""
    scripts = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "PATH": scripts + os.pathsep + os.environ["PATH"],
        "PYTHONPATH": python_path(),
        "PYTHONWARNINGS": "error",
    }


def run(command: list[str], folder: Path, environment: dict[str, str], seconds: float = SECONDS) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_programs_are_there() -> None:
    # Those that print nothing are used by other tests here, or by a program of their page.
    shown = {*outputs(), "weather.py", "watch.py"}
    used = {
        name
        for page in WITH_PROGRAMS
        for name, text in programs(page).items()
        if any(re.search(rf"\b{re.escape(name)}\b", each) for _, each in blocks(page) if each != text)
        or any(f"from {name.removesuffix('.py')} import" in each for each in programs(page).values())
    }
    # These are run with an authorization server: tests/cli/test_login_programs.py, and with one of others in
    # tests/interop/authorization/test_readme_programs.py.
    protected = {"notes.py", "login.py", "machine.py", "robot.py", "bound.py"}
    tests = {"test_notes.py", "test_store.py", "test_weather.py", "test_clock.py", "test_transfer.py"}
    assert set(programs()) == shown | used | protected | WITH_FRAMEWORKS | RUN_BY_HAND | tests


def test_no_two_programs_have_one_name() -> None:
    every = [block for page in WITH_PROGRAMS for block in blocks(page)]
    names = [name_in(text) for language, text in every if language == "python"]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("name", [name for name in outputs() if name not in WITH_FRAMEWORKS | RUN_BY_HAND])
def test_the_program_prints_what_is_below_it(name: str, tmp_path: Path, environment: dict[str, str]) -> None:
    """Nothing else is in the folder than what a reader of the page has, and none of this project's settings."""
    for file, text in files_beside(name):
        (tmp_path / file).write_text(text)
    assert run(["python", name], tmp_path, environment) == outputs()[name]


def test_the_test_of_a_protected_server_passes(folder: Path, environment: dict[str, str]) -> None:
    program = folder / "test_notes.py"
    program.write_text(program.read_text().replace(":8123/", f":{free_port()}/"))
    assert "1 passed" in run([*PYTEST, "test_notes.py"], folder, environment)


def test_the_test_with_another_dependency_passes(folder: Path, environment: dict[str, str]) -> None:
    assert "1 passed" in run([*PYTEST, "test_clock.py"], folder, environment)


def test_the_test_of_a_tool_under_faults_passes(folder: Path, environment: dict[str, str]) -> None:
    assert "2 passed" in run([*PYTEST, "test_transfer.py"], folder, environment)


def test_the_test_of_shared_state_passes(folder: Path, environment: dict[str, str]) -> None:
    # Its leases run in real time, which takes ten seconds where nothing else runs.
    assert "1 passed" in run([*PYTEST, "test_store.py"], folder, environment, 10 * SECONDS)


def test_the_test_with_the_plugin_passes(folder: Path, environment: dict[str, str]) -> None:
    assert "2 passed" in run([*PYTEST, "-p", "pytest_mcp_actors", "test_weather.py"], folder, environment)


# The one file that has a mistake: without it nobody would know that the files were looked at.
MISTAKE = """\
from mcp_actors import Client

async def wrong(client: Client) -> str:
    return await client.call_tool("count", returns=int)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["mypy", "--strict", "--no-error-summary", "--cache-dir", "cache"],
        ["basedpyright", "--pythonpath", sys.executable, "--level", "error", "--outputjson"],
    ],
    ids=lambda command: command[0],
)
def test_the_programs_are_typed(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    # All files in one run: what they import is read once. Those that others import are checked in full, too.
    for name in ("typed_sample.py", "typed_faces.py"):
        (folder / name).write_text((ROOT / "tests" / name).read_text())
    (folder / "mistake.py").write_text(MISTAKE)
    sources = [path for path in environment["PYTHONPATH"].split(os.pathsep) if path]
    settings = {"extraPaths": sources, "typeCheckingMode": "strict"}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    files = sorted({path.name for path in folder.glob("*.py")} - WITH_FRAMEWORKS - RUN_BY_HAND)
    assert set(programs()) - WITH_FRAMEWORKS - RUN_BY_HAND < set(files)
    done = subprocess.run(
        [*command, *files],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=5 * SECONDS,
        check=False,
    )
    if command[0] == "mypy":
        assert [line.partition(" error: ")[0] for line in done.stdout.splitlines()] == ["mistake.py:4:"]
    else:
        report = json.loads(done.stdout)
        assert report["summary"]["filesAnalyzed"] == len(files)
        wrong = [(Path(each["file"]).name, each["rule"]) for each in report["generalDiagnostics"]]
        assert wrong == [("mistake.py", "reportReturnType")]


def test_the_first_ten_minutes(folder: Path, environment: dict[str, str]) -> None:
    page = PAGES["start/ten-minutes.md"]
    lines = [line for language, text in blocks(page) if language == "console" for line in text.splitlines()]
    assert all(line.startswith("$ ") for line in lines)
    script = "set -e\n" + "\n".join(line.removeprefix("$ ") for line in lines)
    printed = run(["bash", "-c", script], folder, environment)
    assert "list_tables" in printed
    assert "Momo" in printed
    assert "create table books" in printed.lower()


def borrowed(page: str) -> set[str]:
    """The programs of the pages that a page has links to."""
    linked = {Path(target).name for target in re.findall(r"\]\(([^)#]+\.md)", page)}
    return {name for path, text in PAGES.items() if Path(path).name in linked for name in programs(text)}


def _root(address: str) -> str:
    return "/".join(address.split("/")[:3])


def complaints_about_commands(page: str) -> list[str]:
    """The addresses that a command talks to before one has served there, and files that a reader does not have."""
    wrong, served = [], set[str]()
    for words in commands(page):
        if is_server(words):
            served.update(local_addresses(words))
            if {"rest", "--rest"} & set(words):
                # A REST API has every path of its addresses.
                served.update(address.removesuffix("/mcp") for address in local_addresses(words))
        else:
            wrong += sorted(each for each in set(local_addresses(words)) if not served & {each, _root(each)})
        for name in re.findall(r"[\w/]+\.py\b", " ".join(words)):
            known = name in programs(page) or (name in borrowed(page))
            wrong += [] if known else [name]
    return wrong


@pytest.mark.parametrize("name", PAGES)
def test_a_page_starts_what_its_commands_talk_to(name: str) -> None:
    assert complaints_about_commands(PAGES[name]) == []


def test_a_command_that_talks_to_nobody_is_seen() -> None:
    serves = "```\nmcp-actors serve weather.py --listen http://127.0.0.1:8000/mcp\n```\n"
    talks = "```\n$ mcp-actors list http://127.0.0.1:8000/mcp\n```\n"
    assert complaints_about_commands(talks) == ["http://127.0.0.1:8000/mcp"]
    assert complaints_about_commands(serves + talks) == ["weather.py"]
    assert complaints_about_commands(serves + talks + "[another page](functions.md)") == []
    asks = "```\n$ curl http://127.0.0.1:8000/tools/add\n```\n[another page](functions.md)"
    assert complaints_about_commands(serves + asks) == ["http://127.0.0.1:8000/tools/add"]
    assert complaints_about_commands(serves.replace("/mcp\n", "/mcp --rest\n") + asks) == []


# Those that other tests run: with the blocks of the README, with Redis, with a collector.
ELSEWHERE = {"$SERVER", "demo", "redis://127.0.0.1", "otel"}
# What a load is given so that it takes no longer than the page needs.
SHORTER = ["--duration", "0.5", "--warm-up", "0"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "start/ten-minutes.md",
        "start/server.md",
        *(f"how-to/{each}.md" for each in ("bench", "live-view", "rest", "sockets", "tasks", "telemetry")),
    ],
)
def test_the_commands_of_a_page_work(name: str, folder: Path, environment: dict[str, str]) -> None:
    """In the order of the page: each server runs until the next one, and what talks to it meanwhile succeeds."""
    lines = [shlex.join(words) for words in commands(PAGES[name])]
    lines = [line for line in lines if not ELSEWHERE & set(shlex.split(line))]
    for port in set(re.findall(r"127\.0\.0\.1:(\d+)", "".join(lines))):
        free = free_port()
        lines = [line.replace(f":{port}", f":{free}") for line in lines]
    with closing(sqlite3.connect(folder / "my.db")) as books:
        books.execute("create table books (title, year)")
    task, stack = "TASK", ExitStack()
    with stack:
        for words in map(shlex.split, lines):
            if is_server(words):
                stack.close()
                stack.enter_context(serving(words, folder, environment))
                continue
            words = [task if word == "TASK" else word for word in words]
            if words[1] == "bench" and "--compare" not in words:
                words += SHORTER
            done = subprocess.run(
                words,
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
            # A slow machine may cross the limit of a load.
            assert done.returncode in ({0, 6} if "--fail-if" in words else {0}), (words, done)
            task = next(iter(re.findall(r"^task (\w+)", done.stderr, re.MULTILINE)), task)


@contextmanager
def serving(words: list[str], folder: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Runs a command that serves, from when it says so at each of its addresses until the end of the block."""
    with subprocess.Popen(words, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            waited_for = {address for address in local_addresses(words) if not address.startswith("unix:")}
            while waited_for:
                line = process.stderr.readline()
                assert line, words
                waited_for -= {address for address in waited_for if address in line}
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(SECONDS)


def test_the_query_that_never_ends_is_cancelled(folder: Path, environment: dict[str, str]) -> None:
    lines = [line for _, text in blocks(PAGES["start/ten-minutes.md"]) for line in text.splitlines()]
    never_ends = next(line for line in lines if line.startswith("mcp-actors call") and "recursive" in line)
    setting = next(line for line in lines if line.startswith("$ export SERVER=")).removeprefix("$ ")
    (folder / "my.db").touch()
    screen, terminal = pty.openpty()  # progress is drawn on terminals only
    process = subprocess.Popen(
        ["bash", "-c", f"{setting}\nexec {never_ends}"], cwd=folder, env=environment, stderr=terminal
    )
    os.close(terminal)
    try:
        seen = b""
        while b"0 rows, 1 s" not in seen:
            seen += os.read(screen, 4096)
        process.send_signal(signal.SIGINT)
        while b"cancelled" not in seen:
            seen += os.read(screen, 4096)
        assert process.wait(SECONDS) == 130
    finally:
        process.kill()
        process.wait()
        os.close(screen)


@pytest.mark.parametrize("name", ["watch.py"])
def test_a_program_without_its_arguments_says_what_it_wants(
    name: str, folder: Path, environment: dict[str, str]
) -> None:
    assert [each for each, text in programs().items() if "sys.argv" in text] == ["watch.py"]
    done = subprocess.run(
        ["python", name],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f": python {name} " in done.stderr


def test_a_changed_file_is_seen(folder: Path, environment: dict[str, str]) -> None:
    watched = folder / "watched"
    watched.mkdir()
    note = watched / "note.txt"
    note.write_text("one")
    process = subprocess.Popen(
        ["python", "watch.py", str(watched), note.as_uri()],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "listening\n"
            note.write_text("two")
            assert process.stdout.readline() == f"resource_updated {note.as_uri()}\n"
        finally:
            process.terminate()


def complaints_about_limits(table: str) -> list[str]:
    """Every row of a table that names where to change a limit has to hold that limit's default."""
    wrong = []
    for row in re.findall(r"^\|(.*)\|$", table, re.MULTILINE):
        _, shown, where = row.split("|")
        numbers = {float(each.replace(",", "")) for each in re.findall(r"[\d,]*\d(?:\.\d+)?", shown)}
        for owner, name in re.findall(r"((?:Http)?Limits)\.(\w+)", where):
            value = getattr({"Limits": mcp_actors.Limits, "HttpLimits": HttpLimits}[owner](), name)
            # Sizes stand there in KiB or MiB.
            if not numbers & {value, value / 2**10, value / 2**20}:
                wrong.append(name)
        for face in re.findall(r"(?:Client|Server)\((?:\w+=(?:, )?)+\)", where):
            parameters = inspect.signature(getattr(mcp_actors, face.partition("(")[0])).parameters
            wrong += [name for name in re.findall(r"(\w+)=", face) if parameters[name].default not in numbers]
    return wrong


def test_the_limits_are_the_defaults() -> None:
    endings = PAGES["why/endings.md"].partition("## What our server does")[2].partition("\n## ")[0]
    for table, rows in ((PAGES["reference/limits.md"], 19), (endings, 3)):
        assert len(re.findall(r"^\|.*`.*\|$", table, re.MULTILINE)) >= rows
        assert complaints_about_limits(table) == []


def test_a_wrong_limit_is_found() -> None:
    assert complaints_about_limits("| a | 7 | `Limits.outbox` |") == ["outbox"]
    assert complaints_about_limits("| a | 8 s | `Limits.end_grace` |") == ["end_grace"]
    assert complaints_about_limits("| a | 7 s | `Client(timeout=)` |") == ["timeout"]


def test_a_stdio_server_ends_before_an_official_client_signals_it() -> None:
    clients = re.findall(
        r"^\| official .* SDK .* \| (\d+) s \| (\d+) s \|", PAGES["why/endings.md"], re.MULTILINE
    )
    assert len(clients) == 4
    limits = mcp_actors.Limits()
    assert limits.end_grace + limits.close_timeout < min(int(term) for term, _ in clients)


def table_of_tasks() -> str:
    """`TASKS` as a Markdown table."""
    rows = [
        f"| `{kind.name}` | {kind.supervisor} | {kind.cost} | {kind.notified} | {'yes' if kind.restarted else ''} |"
        for kind in TASKS
    ]
    head = "| task | owner | a crash ends | who learns of it, beside the log | started again |"
    return "\n".join([head, "|---|---|---|---|---|", *rows]) + "\n"


def test_the_page_has_the_table_of_tasks_as_it_is() -> None:
    assert PAGES["why/supervision.md"] == with_table(PAGES["why/supervision.md"], "tasks", table_of_tasks())


def test_the_house_map_has_the_rings_and_the_floors_of_the_rules() -> None:
    house = PAGES["why/architecture.md"].partition("## House map")[2].partition("\n## ")[0]
    shown = {}
    for floor, found in re.findall(r"^\| (\d+) \| ([^|]*) \|", house, re.MULTILINE):
        for name in re.findall(r"`([\w/]+)`", found):
            shown[name.rstrip("/")] = int(floor)
    assert shown == rule_of_the_house("FLOORS")
    rings: dict[str, list[str]] = rule_of_the_house("RINGS")
    for ring, inside in rings.items():
        (line,) = re.findall(rf"^ *{ring}  +(.*)$", house, re.MULTILINE)
        assert sorted(line.split()) == sorted(inside)


def rule_of_the_house(name: str) -> Any:
    """A table of the test that holds the modules to the house map."""
    tree = ast.parse((ROOT / "tests" / "test_architecture.py").read_text())
    (table,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
    )
    return ast.literal_eval(table)


@cache
def names_of_the_sources() -> tuple[frozenset[str], frozenset[str]]:
    """The classes and functions, and the files and folders, each with a slash before it."""
    known = {
        node.name
        for root in SOURCES
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
    }
    paths = {
        f"/{path.relative_to(ROOT)}{'/' if path.is_dir() else ''}"
        for root in SOURCES
        for path in root.rglob("*")
    }
    return frozenset(known), frozenset(paths)


def unknown_names(page: str) -> list[str]:
    """The modules, folders and classes that a page names and that are not there."""
    known, paths = names_of_the_sources()
    # The programs of pages are started by other pages, and their classes are named there.
    known |= {
        name for text in programs().values() for name in re.findall(r"^class (\w+)", text, re.MULTILINE)
    }
    paths |= {f"/{name}" for name in programs()}
    known |= set(re.findall(r"- alert: (\w+)", (ROOT / "docs/how-to/operations/alerts.yml").read_text()))
    missing = []
    for name in re.findall(r"`([\w./]+)`", page):
        if name.endswith((".py", "/")):
            if not any(path.endswith(f"/{name}") for path in paths):
                missing.append(name)
        elif re.fullmatch(r"[A-Z]\w*[a-z]\w*", name) and name not in known | PROGRAMMING | {"Meta"}:
            missing.append(name)
    return missing


PROGRAMMING = {
    "Exception",
    "TypeError",
    "ValueError",
    "BaseException",
    "SystemExit",
    "KeyboardInterrupt",
    "CancelledError",
    "TaskGroup",
    "ExceptionGroup",
    "BrokenResourceError",
    "DeprecationWarning",
    "None",
    "True",
    "False",
}
PROTOCOL = {
    "Dockerfile",
    "Literal",
    "TypedDict",
    "NamedTuple",
    "Sequence",
    "Annotated",
    "Host",
    "Origin",
    "BrokenResourceError",
}


@pytest.mark.parametrize("page", ["README.md", *PAGES])
def test_what_a_page_names_is_there(page: str) -> None:
    missing = unknown_names(README if page == "README.md" else PAGES[page])
    assert [
        name for name in missing if name not in PROTOCOL and not name.startswith(("tests/", "benchmarks/"))
    ] == []


def test_a_name_that_is_not_there_is_found() -> None:
    assert unknown_names("`Switchboard` in `_actors/switchboard.py`") == [
        "Switchboard",
        "_actors/switchboard.py",
    ]


def test_whoever_has_a_checkout_and_whoever_has_the_package_install_libraries_in_the_same_way() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    users = {
        name: extras[name] for name in ("auth", "bench", "openapi", "otel", "pydantic", "redis", "skills")
    }
    assert f"pip install '.[{','.join(users)}]'" in README
    of = {re.split("[>=<]", each)[0]: each for each in sum(users.values(), extras["examples"])}
    folders = (ROOT / "docs", ROOT / "mcp_actors", ROOT / "transports", ROOT / "benchmarks")
    files = [each for folder in folders for each in folder.rglob("*") if each.suffix in (".md", ".py")]
    told: set[str] = set()
    for text in (README, *(each.read_text() for each in files)):
        # What an index has under this name is another version than the folder that somebody works in.
        assert "install mcp-actors" not in text
        assert "mcp-actors[" not in text
        told |= set(re.findall(r"pip install '([a-z]\w+[^']*)'", text))
    assert {of.get(re.split("[>=<]", each)[0], each) for each in told} == told
    assert len(told) >= 4


def test_the_commands_of_the_front_page_are_those_that_ci_runs() -> None:
    first, second = [text for language, text in blocks() if language == ""][:2]
    assert first == "pip install . && mcp-actors demo\n"
    assert second == "pip install -e '.[test]' && pytest\n"
    ci = (ROOT / ".ci" / "run").read_text().splitlines()
    assert "pip install --quiet -e '.[test]'" in ci
    # The tests against programs of others in two parts, one of which only waits, so that it waits beside the rest.
    silent = 'pytest -m peers -n 0 tests/interop/proxies >"$work/silent.log" 2>&1 </dev/null &'
    others = "others=(-m peers --ignore tests/interop/proxies --ignore tests/browser/test_site.py)"
    slow = 'pytest -m "slow and not peers"'
    assert ci.index(silent) < ci.index("pytest") < ci.index(slow) < ci.index(others)


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{name}" for name in PAGES)])
def test_links_inside_lead_somewhere(page: str) -> None:
    path = ROOT / page
    for target in re.findall(r"\]\(([^)]+)\)", path.read_text()):
        if target.startswith("http"):
            continue
        file, _, anchor = target.partition("#")
        if file.removeprefix("../").startswith("api/"):
            continue  # these pages are made of the docstrings when the site is built, which checks links to them
        led = (path.parent / file) if file else path
        assert led.exists(), target
        if anchor:
            assert anchor in anchors(led.read_text()), target


if __name__ == "__main__":
    SUPERVISION.write_text(with_table(SUPERVISION.read_text(), "tasks", table_of_tasks()))
