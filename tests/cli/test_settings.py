"""The file of settings: what it may have, what is said of mistakes, what takes precedence, and what is shown of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mcp_actors.cli.commands import command_of
from mcp_actors.cli.settings import CONFIGURABLE, KeyPath, Positions, options_of
from mcp_actors.sync import Client
from tests.cli.conftest import ROOT, SERVED, Mcp, Ran, Started
from tests.cli.test_gateway import serving

pytestmark = pytest.mark.slow

SECRET = "s3cr3t"


def wrote(folder: Path, text: str, name: str = "mcp-actors.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def shown(result: Ran) -> dict[str, tuple[Any, str]]:
    """What `config show` has printed: the value of each option that is set, and its origin."""
    assert result.returncode == 0, result.stderr
    values: dict[str, Any] = next(iter(tomllib.loads(result.stdout).values()))
    origins = dict(re.findall(r"^([a-z-]+) = .*  # (.*)$", result.stdout, re.MULTILINE))
    assert values.keys() == origins.keys()
    return {name: (value, origins[name]) for name, value in values.items()}


# -- Where a mistake is -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[serve]\nlisten = [\n", "mcp-actors.toml:3:1: invalid value"),
        ("[serve]\nlisten = 'x'\nlisten = 'y'", "mcp-actors.toml:3:13: cannot overwrite a value"),
        ("[serv]\n", "mcp-actors.toml:1:1: there are no settings of 'serv'; did you mean 'serve'?"),
        ("name = 1\n", "mcp-actors.toml:1:1: there are no settings of 'name': the tables are serve, gateway"),
        ("\nserve = 5", "mcp-actors.toml:2:9: serve has to be a table, with the options of the command"),
        (
            "[serve]\n\n  heath = '/x'",
            "mcp-actors.toml:3:3: serve has no option 'heath'; did you mean 'health'?",
        ),
        (
            "[serve]\nallow_host = 'x'",
            "mcp-actors.toml:2:1: serve has no option 'allow_host'; did you mean 'allow-host'?",
        ),
        ("[gateway]\nsettings = 'x'", "mcp-actors.toml:2:1: gateway has no option 'settings'"),
        ("[serve]\nreload = 'yes'", "mcp-actors.toml:2:10: reload is true or false"),
        ("[serve]\nhealth = 5", "mcp-actors.toml:2:10: health is a text, in quotation marks"),
        (
            "[serve]\nlisten = ['x',\n 1]",
            "mcp-actors.toml:3:2: listen is a text, in quotation marks, or a list of such",
        ),
        ("[serve]\nworkers = 1.5", "mcp-actors.toml:2:11: workers is a whole number"),
        ("[serve]\nworkers = true", "mcp-actors.toml:2:11: workers is a whole number"),
        ("serve.workers = 0", "mcp-actors.toml:1:17: workers: 0 is not in the range x>=1."),
        (
            "serve = { telemetry = 'opentelemetry' }",
            "mcp-actors.toml:1:23: telemetry: 'opentelemetry' is not",
        ),
        (
            "[bench]\nramp = '5:1'",
            "mcp-actors.toml:2:8: ramp: --ramp '5:1': the second rate is to be above the first",
        ),
        ("[bench]\nfail-if = ['p99>5ms', 'p98']", "mcp-actors.toml:2:23: fail-if: "),
        (
            "[serve.limit]\nbeat = 5\nhttp.bogus = 1",
            "mcp-actors.toml:3:14: limit: --limit: there is no limit",
        ),
        (
            "[serve]\nlimit = { beat = 5, max_wait = 'x' }",
            "mcp-actors.toml:2:32: limit: --limit max_wait: write",
        ),
        (
            "[serve]\nlimit = { max_in_flight = 0 }",
            "mcp-actors.toml:2:27: limit: --limit max_in_flight is at",
        ),
        ("[serve]\ndrain-delay = nan", "mcp-actors.toml:2:15: drain-delay: nan is not a valid number."),
        ("[bench]\nwarm-up = nan", "mcp-actors.toml:2:11: warm-up: nan is not a valid number."),
        ("[bench]\nheader = { A = ['x'] }", "mcp-actors.toml:2:16: A is a text or a number"),
        (
            "[serve]\nhealth = '${NO_SUCH_PATH}'",
            "mcp-actors.toml:2:10: the environment variable NO_SUCH_PATH is not set",
        ),
        ("[serve]\nhealth = '${PATH'", "mcp-actors.toml:2:10: a ${ has no }"),
    ],
)
def test_a_mistake_is_named_with_its_line_and_column(mcp: Mcp, tmp_path: Path, text: str, says: str) -> None:
    wrote(tmp_path, text)
    result = mcp("config", "check")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"mcp-actors: {says}")
    assert len(result.stderr.splitlines()) == 1


def test_every_mistake_has_a_line(mcp: Mcp, tmp_path: Path) -> None:
    wrote(tmp_path, "[serve]\nheath = 1\nworkers = 0\n[bench]\nrate = 'x'\n")
    result = mcp("config", "check")
    assert [re.findall(r"mcp-actors\.toml:\d+:\d+", line) for line in result.stderr.splitlines()] == [
        ["mcp-actors.toml:2:1"],
        ["mcp-actors.toml:3:11"],
        ["mcp-actors.toml:5:8"],
    ]


def test_a_mistake_stops_the_command_that_it_is_about_and_no_other(mcp: Mcp, tmp_path: Path) -> None:
    wrote(tmp_path, "[bench]\nrate = 'x'\n[serve]\nheath = '/x'\n")
    result = mcp("serve", "one.py")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("mcp-actors: mcp-actors.toml:4:1: serve has no option 'heath'")
    assert len(result.stderr.splitlines()) == 1
    # Help is shown whatever is wrong with the file.
    assert mcp("serve", "--help").returncode == 0
    assert mcp("config", "show", "gateway").returncode == 0


def test_what_variables_stand_for_is_not_in_what_is_said(
    mcp: Mcp, tmp_path: Path, environment: dict[str, str]
) -> None:
    environment["WORKERS"] = SECRET
    wrote(tmp_path, "[serve]\nworkers = '${WORKERS}'\ntelemetry = '${WORKERS}'")
    for words in (["config", "check"], ["serve", str(SERVED), "--settings", "mcp-actors.toml"]):
        result = mcp(*words)
        assert result.returncode == 2
        assert "workers: it does not fit once its variables have their values" in result.stderr
        assert SECRET not in result.stderr


NASTY = """# [not.a.table]
title = 1 # = 2
"quoted key" = 2
'literal' . dotted = 3
[a."b.c"] # comment ]
text = 'x = 5'
more = \"\"\"
y = [ # 1
\\\"\"\" "" \"\"\"
most = '''
[z]
'' '''
four = 4
list = [ 5, [6 , # seven = 7
  7],
  { eight = 8, "n # i" = { ne = 9 } },
]
[[tables]]
ten = 10
[tables.inner]
eleven = 11
[[tables]]
twelve = 1_2
when = 1979-05-27 07:32:00 # a date with a blank
[[tables.several]]
thirteen = 1.3e1
"""


def leaves(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    inner = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    )
    if inner is None:
        yield path, value
    for key, each in inner or ():
        yield from leaves(each, (*path, key))


@pytest.mark.parametrize("text", [NASTY, NASTY.rstrip("\n"), "", "#", "a = [[], {}, [{}]]"])
def test_each_value_is_found_where_it_is_written(text: str) -> None:
    document, positions = tomllib.loads(text), Positions(text)
    lines = text.split("\n")
    for path, value in leaves(document):
        line, column = positions.of_value(path)
        rest = "\n".join([lines[line - 1][column - 1 :], *lines[line:]])
        # What is there is the value: read alone, with no more of the text than it needs.
        ends = (end for end in range(1, len(rest) + 1) if _read(rest[:end]) == value)
        assert next(ends, None) is not None, (path, rest[:20])
    assert {path for path, _ in leaves(document)} <= set(positions)


def _read(text: str) -> Any:
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return None


# -- Precedence, and where the file is ----------------------------------------------------------------------------


def test_an_option_counts_before_the_environment_that_before_the_file_and_that_before_the_default(
    mcp: Mcp, tmp_path: Path, environment: dict[str, str]
) -> None:
    environment |= {"MCP_ACTORS_BENCH_RATE": "2", "MCP_ACTORS_BENCH_SESSIONS": "3"}
    wrote(tmp_path, "[bench]\nrate = 10\nsessions = 20\nduration = 30\nfail-if = 'errors>0'\n")
    result = shown(mcp("config", "show", "bench", "--rate", "1"))
    assert result["rate"] == (1.0, "option --rate")
    assert result["sessions"] == (3, "environment MCP_ACTORS_BENCH_SESSIONS")
    assert result["duration"] == (30, "mcp-actors.toml:4")
    assert result["fail-if"] == ("errors>0", "mcp-actors.toml:5")
    assert result["warm-up"] == (2.0, "default")
    assert "window" not in result
    environment |= {"MCP_ACTORS_SERVE_REST": "1", "MCP_ACTORS_SERVE_ALLOW_HOST": "a.example b.example"}
    result = shown(mcp("config", "show", "serve"))
    assert result["rest"] == (True, "environment MCP_ACTORS_SERVE_REST")
    assert result["allow-host"][0] == ["a.example", "b.example"]
    unset = dict(re.findall(r"^# ([a-z-]+) +# (.*)$", mcp("config", "show", "serve").stdout, re.MULTILINE))
    assert unset["drain"] == "not set; by default 5"
    assert unset["sessions"] == "not set; by default auto"
    assert unset["listen"] == "not set; by default stdio:"
    assert unset["metrics"] == "not set"


def test_what_may_have_blanks_is_a_line_each_in_the_environment(
    mcp: Mcp, environment: dict[str, str]
) -> None:
    environment |= {
        "MCP_ACTORS_BENCH_HEADER": "Authorization: Bearer x\nX-Key: y\n",
        "MCP_ACTORS_FROM_OPENAPI_ROUTE": "DELETE *=nothing\nGET /a=resource",
    }
    assert shown(mcp("config", "show", "bench"))["header"][0] == ["Authorization: ***", "X-Key: ***"]
    routes = shown(mcp("config", "show", "from-openapi"))["route"][0]
    assert routes == ["DELETE *=nothing", "GET /a=resource"]


def test_what_the_configuration_of_a_gateway_says_is_in_force_where_no_option_is(
    mcp: Mcp, tmp_path: Path, environment: dict[str, str]
) -> None:
    section = {"listen": "http://127.0.0.1:8000/mcp", "name": "all"}
    config = wrote(tmp_path, json.dumps({"mcpServers": {}, "gateway": section}), "mcp.json")
    result = shown(mcp("config", "show", "gateway", "mcp.json"))
    assert result["listen"] == (["http://127.0.0.1:8000/mcp"], "mcp.json")
    assert result["name"] == ("all", "mcp.json")
    environment["MCP_ACTORS_GATEWAY_NAME"] = "other"
    assert shown(mcp("config", "show", "gateway", str(config)))["name"][0] == "other"


def test_what_is_in_force_is_what_serves(
    started: Started, tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wrote(tmp_path, "[serve]\nlisten = ['http://127.0.0.1:0/${NAME}']\nhealth = '/up'\nadmin = 'unix:none'\n")
    environment |= {"NAME": "named", "MCP_ACTORS_SERVE_ADMIN": f"unix:{tmp_path}/admin"}
    words = ["serve", str(SERVED), "--settings", "mcp-actors.toml", "--health", "/down"]
    with serving(started, *words) as (_, (place,)):
        assert place.endswith("/named")
        assert (tmp_path / "admin").exists()
        with Client(place) as client:
            assert client.server_info.name == "served"


@pytest.mark.parametrize("command", ["serve", "gateway"])
def test_the_file_beside_what_is_run_is_found_and_said(mcp: Mcp, tmp_path: Path, command: str) -> None:
    there = tmp_path / "there"
    there.mkdir()
    wrote(tmp_path, "[serve]\nhealth = '/here'\n[gateway]\nhealth = '/here'\n")
    wrote(there, f"[{command}]\nhealth = '/there'\n")
    wrote(there, "[tool.mcp-actors.serve]\nhealth = '/pyproject'\n", "pyproject.toml")
    target = "there/one.py" if command == "serve" else "there/mcp.json"
    assert shown(mcp("config", "show", command, target))["health"] == ("/there", "there/mcp-actors.toml:2")
    assert shown(mcp("config", "show", command))["health"][0] == "/here"
    result = mcp(command, target)
    assert "mcp-actors: settings of there/mcp-actors.toml" in result.stderr.splitlines()


def test_a_table_of_pyproject_is_read_as_well(mcp: Mcp, tmp_path: Path) -> None:
    wrote(tmp_path, "[project]\nname = 'x'\n[tool.mcp-actors.serve]\nhealth = '/up'\n", "pyproject.toml")
    assert shown(mcp("config", "show", "serve"))["health"] == ("/up", "pyproject.toml:4")
    assert mcp("config", "check").stdout == "pyproject.toml is right; settings: serve 1\n"
    assert "health" not in shown(mcp("config", "show", "serve", "--settings", "none"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[tool]\nmcp-actors = 5", "mcp-actors: pyproject.toml:2:14: tool.mcp-actors has to be a table"),
        ("tool = 'mcp-actors'", "mcp-actors: pyproject.toml has no table [tool.mcp-actors]"),
    ],
)
def test_a_pyproject_whose_table_is_none_says_so(mcp: Mcp, tmp_path: Path, text: str, says: str) -> None:
    wrote(tmp_path, text, "pyproject.toml")
    result = mcp("config", "check", "pyproject.toml")
    assert result.returncode == 2
    assert result.stderr.startswith(says)


def test_a_pyproject_of_others_is_not_looked_into(mcp: Mcp, tmp_path: Path) -> None:
    wrote(tmp_path, "[broken", "pyproject.toml")
    assert mcp("config", "show", "serve").returncode == 0
    result = mcp("config", "check")
    assert result.returncode == 2
    assert (
        "there is neither mcp-actors.toml nor pyproject.toml with a table [tool.mcp-actors]" in result.stderr
    )
    result = mcp("config", "show", "serve", "--settings", "pyproject.toml")
    assert (result.returncode, "has no table [tool.mcp-actors]" in result.stderr) == (2, True)
    result = mcp("config", "show", "serve", "--settings", "nowhere.toml")
    assert (result.returncode, "nowhere.toml: it cannot be read" in result.stderr) == (2, True)


# -- Secrets ------------------------------------------------------------------------------------------------------

# Says what is on the command lines of its process and of the supervisor.
TELLS = """
import os, sys
from mcp_actors import Server
server = Server("tells")

@server.tool
def words() -> str:
    return open("/proc/self/cmdline").read() + open(f"/proc/{os.getppid()}/cmdline").read()
"""


def counting(folder: Path) -> str:
    """A command that says the secret, and leaves a line in ``ran`` each time that it is run."""
    wrote(folder, f"open('ran', 'a').write('x\\n'); print('{SECRET}')", "tell.py")
    return f"${{cmd:{sys.executable} tell.py}}"


def test_a_command_is_run_once_and_what_it_says_is_shown_nowhere(
    started: Started, mcp: Mcp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wrote(tmp_path, TELLS, "tells.py")
    command = counting(tmp_path)
    wrote(
        tmp_path,
        f"[serve]\nlisten = 'http://127.0.0.1:0/mcp'\nallow-host = ['127.0.0.1', '{command}']\nworkers = 2\n",
    )
    for words in (["config", "check"], ["config", "show", "serve", "--settings", "mcp-actors.toml"]):
        result = mcp(*words)
        assert result.returncode == 0
        assert SECRET not in result.stdout
    assert not (tmp_path / "ran").exists()
    with serving(started, "serve", "tells.py", "--settings", "mcp-actors.toml") as (_, (place,)):
        with Client(place) as client:
            assert SECRET not in client.call_tool("words", returns=str)
    assert (tmp_path / "ran").read_text() == "x\n"


def test_a_file_that_was_found_in_a_folder_runs_nothing(mcp: Mcp, tmp_path: Path) -> None:
    wrote(tmp_path, f"[serve]\n  health = '/{counting(tmp_path)}'\n")
    result = mcp("serve", str(tmp_path / "one.py"))
    assert result.returncode == 2
    assert ":2:12: a file that was found in a folder runs no command: name it, by --settings" in result.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("no-such-program x", "the command no-such-program cannot be run (No such file or directory)"),
        ("{python} -c 'print(5); exit(3)'", "has failed with exit code 3; nothing that it writes is shown"),
        ("{python} -c 'print(5*chr(120)*99999)'", "writes more than 65536 bytes"),
        ("", "${cmd:} has no command"),
        ('{python} "', "has a quotation mark without another one"),
    ],
)
def test_a_command_without_a_value_says_why(mcp: Mcp, tmp_path: Path, command: str, says: str) -> None:
    text = json.dumps(f"${{cmd:{command.format(python=sys.executable)}}}")
    wrote(tmp_path, f"[serve]\nhealth = {text}\n")
    result = mcp("serve", str(SERVED), "--settings", "mcp-actors.toml")
    assert result.returncode == 2
    assert result.stderr.startswith("mcp-actors: mcp-actors.toml:2:10: ")
    assert says in result.stderr


def test_secrets_are_masked(mcp: Mcp, tmp_path: Path, environment: dict[str, str]) -> None:
    environment["MCP_ACTORS_BRIDGE_ADMIN"] = f"http://me:{SECRET}@h/?x=1&api_key={SECRET}"
    wrote(
        tmp_path,
        f"[serve]\nshared = 'redis://:{SECRET}@h:1/2?password={SECRET}'\n"
        f"[gateway]\nshared = 'redis://:{SECRET}/{SECRET}@h'\nlisten = 'http://h:80/users/@me'\n"
        f"[bench]\nheader = ['Authorization: Bearer {SECRET}', '{SECRET}']\n"
        f"[bridge]\nheader = {{ X-Key = '{SECRET}' }}\n",
    )
    results = {name: mcp("config", "show", name) for name in ("serve", "gateway", "bench", "bridge")}
    assert SECRET not in "".join(each.stdout for each in results.values())
    assert shown(results["serve"])["shared"][0] == "redis://:***@h:1/2?password=***"
    assert shown(results["gateway"])["shared"][0] == "redis://:***@h"
    assert shown(results["gateway"])["listen"][0] == "http://h:80/users/@me"
    assert shown(results["bench"])["header"][0] == ["Authorization: ***", "***"]
    assert shown(results["bridge"])["header"][0] == {"X-Key": "***"}
    assert shown(results["bridge"])["admin"][0] == "http://me:***@h/?x=1&api_key=***"


# -- Each option has a key by itself ------------------------------------------------------------------------------

ONE_MORE = """
import attrs
from mcp_actors.cli import serve_options

@attrs.frozen(kw_only=True)
class WithOneMore(serve_options.ServeOptions):
    probe: str | None = serve_options._option("--probe", "For operators", metavar="WORD", help="One more.")

serve_options.ServeOptions = WithOneMore
"""


def test_an_option_that_is_added_has_a_key_and_a_variable(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    wrote(tmp_path, ONE_MORE, "sitecustomize.py")
    wrote(tmp_path, "[gateway]\nprobe = 'from the file'\n[serve]\nprobe = 1\n")
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), environment["PYTHONPATH"]])

    def run(*words: str) -> Ran:
        command = [sys.executable, "-m", "mcp_actors", "config", *words]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    assert shown(run("show", "gateway"))["probe"] == ("from the file", "mcp-actors.toml:2")
    assert "mcp-actors.toml:4:9: probe is a text" in run("check").stderr
    environment["MCP_ACTORS_GATEWAY_PROBE"] = "there"
    assert shown(run("show", "gateway"))["probe"] == ("there", "environment MCP_ACTORS_GATEWAY_PROBE")


@pytest.mark.parametrize("name", CONFIGURABLE)
def test_each_option_is_shown(mcp: Mcp, name: str) -> None:
    lines = mcp("config", "show", name).stdout.splitlines()
    assert lines[0] == f"[{name}]"
    assert [re.sub(r"^# ", "", line).split()[0] for line in lines[1:]] == list(options_of(command_of(name)))


# -- The page -----------------------------------------------------------------------------------------------------

PAGE = (ROOT / "docs" / "how-to" / "settings.md").read_text()
(FILE,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
TABLES: dict[str, dict[str, Any]] = tomllib.loads(FILE)


def test_the_page_has_every_option() -> None:
    assert {name: set(table) for name, table in TABLES.items()} == {
        name: set(options_of(command_of(name))) for name in CONFIGURABLE
    }


@pytest.mark.parametrize("name", CONFIGURABLE)
def test_each_option_of_the_page_is_read_back(
    mcp: Mcp, tmp_path: Path, environment: dict[str, str], name: str
) -> None:
    wrote(tmp_path, FILE)
    environment |= {"REDIS_PASSWORD": "p", "BENCH_TOKEN": "t"}
    for file in ("cert.pem", "key.pem", "keys", "calls.json", "mcp.lock"):
        wrote(tmp_path, "", file)
    assert mcp("config", "check").returncode == 0
    positions = Positions(FILE)
    found = shown(mcp("config", "show", name))
    assert {option: origin for option, (_, origin) in found.items()} == {
        option: f"mcp-actors.toml:{positions.of_key((name, option))[0]}" for option in TABLES[name]
    }
    for option, (value, _) in found.items():
        written = TABLES[name][option]
        if option == "header":
            masked = {
                "bridge": ["X-Tenant: ***"],
                "from-openapi": ["X-Key: ***"],
                "rest": ["X-Tenant: ***"],
                "bench": {"Authorization": "***"},
            }
            assert value == masked[name]
        elif option == "shared" and name == "serve":
            assert value == "redis://:***@${REDIS_HOST:-127.0.0.1}"
        else:
            assert value == written, option
