"""What an import of the package may do to a process: little, and nothing that lasts outside of it."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mcp_actors

ROOT = Path(__file__).parent.parent
# What a server that speaks stdio has no use for.
NOT_FOR_STDIO = {
    "anyio", "asyncio", "click", "h11", "httpcore2", "httptools", "httpx", "httpx2", "hypothesis", "jwt", "pydantic",
    "pytest", "importlib.metadata",
    "mcp_actors._server.isolation", "mcp_actors._server.isolated_messages", "mcp_actors._server.process_start",
    "mcp_actors._client", "mcp_actors.client", "rich", "trio_websocket", "jsonschema_rs",
    "email", "watchfiles", "wsproto", "mcp_actors.cli",
    "mcp_actors.examples", "mcp_actors.testing",
    "mcp_actors.extensions", "mcp_actors._server.server_extension", "mcp_actors._client.client_extension",
    "mcp_actors.tasks", "mcp_actors.asyncio", "mcp_actors.sync", "mcp_actors.bridges.faces",
    "mcp_actors.telemetry", "mcp_actors._actors.observed", "opentelemetry",
    "joserfc", "coredis", "mcp_actors.shared.redis", "mcp_actors.auth", "mcp_transports.auth",
    "mcp_actors.types.messages", "mcp_actors.types.prompts", "mcp_actors.types.form",
    "mcp_actors.types.client_features", "mcp_actors.types.resources", "mcp_actors.types.tasks",
    "mcp_transports.stdio.client", "mcp_transports.stdio.child", "mcp_transports.stdio.starting",
    "difflib", "mimetypes",
    "mcp_transports.http", "mcp_transports.tcp", "mcp_transports.unix", "mcp_transports.websocket",
}  # fmt: skip


def in_a_fresh_interpreter(program: str, *, read: str = "") -> Any:
    """Runs ``program``, which prints JSON at last, where no test has imported anything yet."""
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=ROOT,
        input=read,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


IMPORT = "import mcp_actors, mcp_transports.stdio, mcp_transports.memory; server = mcp_actors.Server('x')\n"
TOOL = """
called = []

@server.tool
def add(a: int, b: int = 0) -> int:
    called.append(a)
    return a + b
"""
PARAMS = {
    "_meta": {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "it", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
}
SESSION = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "it", "version": "1"}}
CALL = {"name": "add", "arguments": {"a": 1}}
# What a client of either era sends until its first call is answered.
MODERN = [("server/discover", PARAMS), ("tools/list", PARAMS), ("tools/call", {**PARAMS, **CALL})]
LEGACY = [("initialize", SESSION), ("tools/list", {}), ("tools/call", CALL)]


@pytest.mark.parametrize("requests", [MODERN, LEGACY], ids=["modern", "legacy"])
def test_a_stdio_server_imports_only_what_it_uses(requests: list[tuple[str, dict[str, Any]]]) -> None:
    sent = [
        {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        for number, (method, params) in enumerate(requests)
    ]
    program = (
        IMPORT + TOOL + "server.run('stdio:')\n"
        "import json, sys; print(json.dumps([called, sorted(sys.modules)]))"
    )
    called, modules = in_a_fresh_interpreter(program, read="\n".join(map(json.dumps, sent)))
    assert called == [1]
    loaded = set(modules)
    # structlog itself looks for rich, and takes it where it is installed.
    by_structlog = set(
        in_a_fresh_interpreter("import structlog, json, sys; print(json.dumps(sorted(sys.modules)))")
    )
    assert "mcp_transports.stdio" in loaded
    assert (loaded - by_structlog) & NOT_FOR_STDIO == set()


# The records that describe a server with one tool, those with its limits and what is counted, and no other, are made
# until the first answer and the end of the session.
COMPLETED = {
    "Implementation", "InitializeResult", "ServerCapabilities", "Tool", "ToolsCapability",
    "Limits", "Counters", "LinkStatistics", "Totals",
}  # fmt: skip
# What the first answer has no use for, but the first call may.
NOT_FOR_THE_FIRST_ANSWER = {
    "cattrs", "dataclasses", "json", "shlex", "structlog", "mcp_actors._eras.convert",
    "http", "multiprocessing", "concurrent.futures", "xml", "unittest", "pickle",
}  # fmt: skip


def test_the_first_answer_of_a_stdio_server_needs_no_converter_and_few_records() -> None:
    request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": SESSION}
    program = (
        IMPORT
        + TOOL
        + """
server.run('stdio:')
import gc, sys
from mcp_actors.types.records import ValueRecord
def records(base):
    for each in base.__subclasses__():
        yield each
        yield from records(each)
gc.collect()
made = [each for each in records(ValueRecord) if '__slots__' in vars(each) and vars(each).get('__annotations__')]
completed = [each.__name__ for each in made if isinstance(vars(each)['__attrs_attrs__'], tuple)]
loaded = sorted(sys.modules)
import json; print(json.dumps([len(made), completed, loaded]))
"""
    )
    made, completed, modules = in_a_fresh_interpreter(program, read=json.dumps(request))
    assert made > 2 * len(COMPLETED)
    assert set(completed) == COMPLETED
    # Trio and msgspec may load some of them themselves.
    by_others = set(
        in_a_fresh_interpreter(
            "import trio, msgspec, sys; loaded = sorted(sys.modules); import json; print(json.dumps(loaded))"
        )
    )
    assert (set(modules) - by_others) & NOT_FOR_THE_FIRST_ANSWER == set()


def test_a_client_imports_no_server() -> None:
    program = "from mcp_actors import Client\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    loaded = set(in_a_fresh_interpreter(program))
    assert "mcp_actors._client" in loaded
    assert loaded & {"mcp_actors.server", "mcp_actors._server"} == set()


def test_a_module_that_is_loaded_late_is_an_attribute_of_the_package_all_the_same() -> None:
    program = (
        "import mcp_actors, json; print(json.dumps([mcp_actors.client.__name__, mcp_actors.server.__name__]))"
    )
    assert in_a_fresh_interpreter(program) == ["mcp_actors.client", "mcp_actors.server"]


def test_type_checkers_are_told_the_names_that_are_loaded_late() -> None:
    stub = ast.parse(Path(mcp_actors.__file__).with_suffix(".pyi").read_text())
    told = {
        name.name: getattr(importlib.import_module(node.module or ""), name.name)
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    assert set(mcp_actors.__all__) == set(told)
    assert set(told) <= set(dir(mcp_actors))
    assert {name: getattr(mcp_actors, name) for name in told} == told
    with pytest.raises(AttributeError, match="no attribute 'Pigeon'"):
        getattr(mcp_actors, "Pigeon")  # noqa: B009


def test_a_client_with_credentials_imports_no_server_and_nothing_for_signatures() -> None:
    program = (
        "import mcp_transports.http.client.authorized_sender, mcp_transports.auth\n"
        "import json, sys; print(json.dumps(sorted(sys.modules)))"
    )
    loaded = set(in_a_fresh_interpreter(program))
    assert "mcp_transports.auth.authorizer" in loaded
    unused = {"joserfc", "mcp_transports.http.h1", "mcp_transports.auth.loopback_listener"}
    assert loaded & unused == set()


@pytest.mark.parametrize("before", ["", "gc.disable()", "gc.freeze()"])
def test_the_garbage_collector_is_as_it_was(before: str) -> None:
    program = f"""
import gc, json
{before}
def state():
    return [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count() > 0]
was = state()
import mcp_actors
mcp_actors.Server
print(json.dumps([was, state()]))
"""
    was, is_now = in_a_fresh_interpreter(program)
    assert is_now == was


def test_a_name_that_does_not_load_leaves_the_garbage_collector_running() -> None:
    program = """
import gc, json, sys
import mcp_actors
sys.modules["mcp_actors.server"] = None
try:
    mcp_actors.Server
except ImportError:
    print(json.dumps(gc.isenabled()))
"""
    assert in_a_fresh_interpreter(program) is True


LOGGING_STATE = """
import json, logging, warnings, structlog
def state():
    root = logging.getLogger()
    with_handlers = [name for name, each in root.manager.loggerDict.items() if getattr(each, "handlers", None)]
    return [repr(root.handlers), root.level, root.disabled, sorted(with_handlers), logging.getLoggerClass().__name__,
            logging.raiseExceptions, repr(logging.lastResort), root.manager.disable, structlog.is_configured(),
            logging.getLogRecordFactory().__name__]
before = state()
"""


def test_importing_and_constructing_leaves_logging_alone() -> None:
    program = LOGGING_STATE + IMPORT + "print(json.dumps([before, state()]))"
    before, after = in_a_fresh_interpreter(program)
    assert before == after


def test_the_state_of_logging_is_really_compared() -> None:
    program = LOGGING_STATE + "logging.basicConfig(level=10)\nprint(json.dumps([before, state()]))"
    before, after = in_a_fresh_interpreter(program)
    assert before != after
