"""What the README and the pages in ``docs`` show is run, or compared with the code.

``python -m tests.test_readme`` writes the table of `TASKS` into ``docs/supervision.md`` again.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import mcp_actors
from mcp_actors.supervision.task_kinds import TASKS
from mcp_transports.http.server import HttpLimits
from tests.pages import PAGES, README, ROOT, WITH_FRAMEWORKS, blocks, programs, with_table

SUPERVISION = ROOT / "docs" / "supervision.md"
SOURCES = (ROOT / "mcp_actors", ROOT / "transports" / "mcp_transports")
SECONDS = 60

# Without pytest-asyncio, which warns where its settings are missing.
PYTEST = ["python", "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:asyncio"]


def output_after(name: str) -> str:
    """The text block that follows the program ``name``."""
    every = [block for page in (README, *PAGES.values()) for block in blocks(page)]
    place = next(n for n, (_, text) in enumerate(every) if text.startswith(f"# {name}\n"))
    language, text = every[place + 1]
    assert language == "text"
    return text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in programs().items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def environment() -> dict[str, str]:
    """`python` and `mcp-actors` are those of this environment, and they find this checkout."""
    scripts = str(Path(sys.executable).parent)
    packages = [str(Path(mcp_actors.__file__).parent.parent), str(ROOT / "transports")]
    return {
        **os.environ,
        "PATH": scripts + os.pathsep + os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(packages),
        "PYTHONWARNINGS": "error",
    }


def run(command: list[str], folder: Path, environment: dict[str, str], seconds: float = SECONDS) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# Programs below whose text stands what they print.
PRINTING = [
    "ask.py",
    "web.py",
    "embedding.py",
    "hub.py",
    "stocks.py",
    "reports.py",
    "two_lines.py",
    "ask_asyncio.py",
    "beside.py",
    "ask_sync.py",
    "plot.py",
    "exact.py",
    "routes.py",
    "traced.py",
    "measured.py",
    "guarded.py",
    "patient.py",
    "inspecting.py",
    "passing.py",
    "chosen.py",
    "hosting.py",
    "record_calls.py",
]


def test_the_programs_are_there() -> None:
    # Those that print nothing are used by other tests here.
    shown = {*PRINTING, "weather.py", "watch.py"}
    # These are run with a real authorization server: tests/interop/authorization/test_readme_programs.py.
    protected = {"notes.py", "login.py", "machine.py"}
    tests = {"test_notes.py", "test_store.py", "test_weather.py"}
    assert set(programs()) == shown | protected | WITH_FRAMEWORKS | tests


@pytest.mark.parametrize("name", PRINTING)
def test_the_program_prints_what_stands_below_it(
    name: str, folder: Path, environment: dict[str, str]
) -> None:
    assert run(["python", name], folder, environment) == output_after(name)


def test_the_test_of_a_protected_server_passes(folder: Path, environment: dict[str, str]) -> None:
    program = folder / "test_notes.py"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    program.write_text(program.read_text().replace(":8123/", f":{port}/"))
    assert "1 passed" in run([*PYTEST, "test_notes.py"], folder, environment)


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
    sources = environment["PYTHONPATH"].split(os.pathsep)
    settings = {"extraPaths": sources, "typeCheckingMode": "strict"}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    files = sorted({path.name for path in folder.glob("*.py")} - WITH_FRAMEWORKS)
    assert set(programs()) - WITH_FRAMEWORKS < set(files)
    done = subprocess.run(
        [*command, *files],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
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
    lines = [line for language, text in blocks() if language == "console" for line in text.splitlines()]
    assert all(line.startswith("$ ") for line in lines)
    script = "set -e\n" + "\n".join(line.removeprefix("$ ") for line in lines)
    printed = run(["bash", "-c", script], folder, environment)
    assert "list_tables" in printed
    assert "Momo" in printed
    assert "create table books" in printed.lower()


def test_the_query_that_never_ends_is_cancelled(folder: Path, environment: dict[str, str]) -> None:
    lines = [line for _, text in blocks() for line in text.splitlines()]
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


@pytest.mark.parametrize("name", ["notes.py", "watch.py"])
def test_a_program_without_its_arguments_says_what_to_give(
    name: str, folder: Path, environment: dict[str, str]
) -> None:
    done = subprocess.run(
        ["python", name],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert f"python {name} " in done.stderr
    assert len(done.stderr.splitlines()) == 1


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
    endings = PAGES["endings.md"].partition("## What our server does")[2]
    for table, rows in ((PAGES["limits.md"], 19), (endings, 3)):
        assert len(re.findall(r"^\|.*`.*\|$", table, re.MULTILINE)) >= rows
        assert complaints_about_limits(table) == []


def test_a_wrong_limit_is_found() -> None:
    assert complaints_about_limits("| a | 7 | `Limits.outbox` |") == ["outbox"]
    assert complaints_about_limits("| a | 8 s | `Limits.end_grace` |") == ["end_grace"]
    assert complaints_about_limits("| a | 7 s | `Client(timeout=)` |") == ["timeout"]


def test_a_stdio_server_ends_before_an_official_client_signals_it() -> None:
    clients = re.findall(
        r"^\| official .* SDK .* \| (\d+) s \| (\d+) s \|", PAGES["endings.md"], re.MULTILINE
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
    assert PAGES["supervision.md"] == with_table(PAGES["supervision.md"], "tasks", table_of_tasks())


def test_the_house_map_has_the_rings_and_the_floors_of_the_rules() -> None:
    house = PAGES["architecture.md"].partition("## House map")[2].partition("\n## ")[0]
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
    # The classes of the programs on this page, and of the README's, to which pages refer.
    known |= {name for text in (page, README) for name in re.findall(r"^class (\w+)", text, re.MULTILINE)}
    paths |= {f"/{name}" for name in programs()}
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
    "None",
    "True",
    "False",
}
PROTOCOL = {"Literal", "TypedDict", "NamedTuple", "Sequence", "Annotated", "Host", "Origin"}


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
    users = {name: extras[name] for name in ("auth", "bench", "otel", "pydantic", "redis")}
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
    assert ci.index(silent) < ci.index("pytest") < ci.index("pytest -m peers --ignore tests/interop/proxies")


def anchors(page: str) -> set[str]:
    return {
        re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    }


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{name}" for name in PAGES)])
def test_links_inside_lead_somewhere(page: str) -> None:
    path = ROOT / page
    for target in re.findall(r"\]\(([^)]+)\)", path.read_text()):
        if target.startswith("http"):
            continue
        file, _, anchor = target.partition("#")
        led = (path.parent / file) if file else path
        assert led.exists(), target
        if anchor:
            assert anchor in anchors(led.read_text()), target


if __name__ == "__main__":
    SUPERVISION.write_text(with_table(SUPERVISION.read_text(), "tasks", table_of_tasks()))
