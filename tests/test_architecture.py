"""The rules of the house as tests: floors, names, sizes.

Every rule is a function from modules to complaints. It is run on the real sources, where it must find nothing, and on a
snippet that breaks it, where it must find something: a rule that cannot fail protects nothing.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = {"mcp_actors": ROOT / "mcp_actors", "mcp_transports": ROOT / "transports" / "mcp_transports"}

FLOORS = {
    "mcp_actors.errors": 0,
    "mcp_actors.principal": 0,
    "mcp_actors._http_request": 1,
    "mcp_actors.logging": 0,
    "mcp_actors.budget": 0,
    "mcp_actors.crash_log": 0,
    "mcp_actors.http_refusals": 0,
    "mcp_actors.printable": 0,
    "mcp_actors._record": 0,
    "mcp_actors.supervision": 1,
    "mcp_actors.task_kinds": 1,
    "mcp_actors._exception_groups": 0,
    "mcp_actors._wire": 1,
    "mcp_actors.auth": 1,
    "mcp_actors._uri": 1,
    "mcp_actors.types": 2,
    "mcp_actors._eras": 3,
    "mcp_actors.abc": 4,
    "mcp_actors.platform": 4,
    "mcp_actors.shared": 5,
    "mcp_actors.bridges": 5,
    "mcp_actors.framing": 4,
    "mcp_actors._gc": 4,
    "mcp_actors.loading": 4,
    "mcp_actors._argument_checks": 4,
    "mcp_actors._schema": 4,
    "mcp_actors._actors": 5,
    "mcp_actors._client": 6,
    "mcp_actors._server": 6,
    "mcp_actors.context": 7,
    "mcp_actors.server": 7,
    "mcp_actors.replacement": 7,
    "mcp_actors.client": 7,
    "mcp_actors.client_pool": 7,
    "mcp_actors.client_group": 7,
    "mcp_actors.server_entries": 7,
    "mcp_actors.extensions": 7,
    "mcp_actors.asyncio": 7,
    "mcp_actors.sync": 7,
    "mcp_actors.tasks": 7,
    "mcp_actors.telemetry": 7,
    "mcp_actors.middleware": 7,
    "mcp_actors.admin": 7,
    "mcp_actors.inspection": 7,
    "mcp_actors.gateway": 7,
    "mcp_actors.discovery": 5,
    "mcp_actors.testing": 7,
    "mcp_actors.simulate": 7,
    "mcp_actors.__main__": 8,
    "mcp_actors.bench": 8,
    "mcp_actors.cli": 8,
    "mcp_actors.examples": 8,
    "mcp_transports": 8,
}
TOP_FLOOR = 8
# From the top: each uses itself and those after it.
GATEWAY_GROUPS = ("forwarding", "lists", "upstream", "questions")
SANS_IO_FLOORS = 3
REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")
LINES_OF_A_FILE = 400
LINES_OF_A_FUNCTION = 80
BANNED_WORDS = {"util", "utils", "helper", "helpers", "manager", "runner", "wrapper", "lowlevel"}
BANNED_MODULES = BANNED_WORDS | {"common", "misc"}
CONTEXTS = (
    "mcp_actors._server.context",
    "mcp_actors._server.sync_context",
    "mcp_actors._server.asyncio_context",
)
# Third-party packages that only some part of the house may know.
ONLY_IN = {
    "click": ("mcp_actors.cli",),
    "coredis": ("mcp_actors.shared.redis",),
    "opentelemetry": ("mcp_actors.telemetry.otel", "mcp_actors.cli"),
    "rich": ("mcp_actors.cli",),
    "watchfiles": ("mcp_actors.examples", "mcp_actors.cli.reload"),
}
# Packages of ours that know nothing of ours but this, and themselves.
_SUPERVISED = ("mcp_actors.supervision", "mcp_actors.task_kinds", "mcp_actors.logging", "mcp_actors.budget")
_SHARED_BY_LISTENERS = (
    "mcp_transports._sockets",
    "mcp_transports._unix_sockets",
    "mcp_transports._inherited",
    "mcp_transports._accepting",
    "mcp_transports._socket_options",
    "mcp_transports._poller",
    "mcp_transports._epoll",
    "mcp_transports._portable_poller",
    "mcp_transports._waiting",
    "mcp_transports._ticker",
)
KNOWS_ONLY = {
    "mcp_transports.http.h1": ("mcp_transports.http.h1", *_SHARED_BY_LISTENERS, *_SUPERVISED),
    **dict.fromkeys(_SHARED_BY_LISTENERS, _SUPERVISED),
    "mcp_transports._epoll": ("mcp_transports._poller",),
    "mcp_transports._portable_poller": ("mcp_transports._poller", *_SUPERVISED),
    "mcp_transports._waiting": (
        "mcp_transports._poller",
        "mcp_transports._epoll",
        "mcp_transports._portable_poller",
    ),
    "mcp_transports._sockets": ("mcp_transports._inherited", *_SUPERVISED),
    "mcp_transports._unix_sockets": ("mcp_transports._sockets", "mcp_transports._inherited"),
    "mcp_transports._accepting": ("mcp_transports._sockets", "mcp_transports._inherited", *_SUPERVISED),
}


@dataclass(frozen=True)
class Module:
    name: str
    text: str
    known: frozenset[str] = frozenset()
    package: bool = False

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def floor(self) -> int:
        return floor_of(self.name)

    def within(self, *packages: str) -> bool:
        return any(self.name == each or self.name.startswith(each + ".") for each in packages)

    def imports(self) -> Iterator[tuple[str, str | None]]:
        """(module, name taken from it or ``None``), wherever in the file it is imported."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((alias.name, None) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                source = self._absolute(node)
                for alias in node.names:
                    whole = f"{source}.{alias.name}"
                    yield (whole, None) if whole in self.known else (source, alias.name)

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        above = parts[: len(parts) - node.level + (1 if self.package else 0)]
        return ".".join([*above, node.module] if node.module else above)


def floor_of(name: str) -> int:
    for prefix, floor in FLOORS.items():
        if name == prefix or name.startswith(prefix + "."):
            return floor
    if name == "mcp_actors":
        return TOP_FLOOR
    raise KeyError(f"{name} has no floor: give it one in the house map and here")


def load_sources() -> list[Module]:
    files = {}
    for package, folder in SOURCES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = [package, *path.relative_to(folder).with_suffix("").parts]
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            files[name] = path
    known = frozenset(files)
    return [Module(name, path.read_text(), known, path.stem == "__init__") for name, path in files.items()]


def ours(name: str) -> bool:
    return name.partition(".")[0] in SOURCES


# -- rules ------------------------------------------------------------------------------------------------------------


def only_lower_floors_are_imported(modules: list[Module]) -> list[str]:
    return [
        f"{module.name} (floor {module.floor}) imports {target} (floor {floor_of(target)})"
        for module in modules
        for target, _ in module.imports()
        if ours(target) and floor_of(target) > module.floor
    ]


def errors_import_nothing_of_ours(modules: list[Module]) -> list[str]:
    return [
        f"{module.name} imports {target}"
        for module in modules
        if module.name.startswith("mcp_actors.errors")
        for target, _ in module.imports()
        if target.partition(".")[0] not in sys.stdlib_module_names
        and not target.startswith("mcp_actors.errors")
    ]


def no_import_goes_in_a_circle(modules: list[Module]) -> list[str]:
    graph = {module.name: {target for target, _ in module.imports() if ours(target)} for module in modules}
    done: set[str] = set()
    circles: list[str] = []

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            circles.append(" -> ".join((*path[path.index(name) :], name)))
        elif name not in done:
            for target in sorted(graph.get(name, ())):
                visit(target, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())
    return circles


def sans_io_floors_know_no_trio(modules: list[Module]) -> list[str]:
    banned = {"trio", "structlog", "socket", "select", "selectors", "threading", "subprocess"}
    return [
        f"{module.name} imports {target}"
        for module in modules
        if module.floor <= SANS_IO_FLOORS
        and not module.within(
            "mcp_actors.crash_log", "mcp_actors.logging", "mcp_actors.supervision", "mcp_actors.task_kinds"
        )
        for target, _ in module.imports()
        if target.partition(".")[0] in banned
    ]


def top_floor_uses_public_names_only(modules: list[Module]) -> list[str]:
    return [
        f"{module.name} imports {target}{'.' + name if name else ''}"
        for module in modules
        if module.within("mcp_actors.cli", "mcp_actors.examples", "mcp_actors.tasks", "mcp_transports")
        for target, name in module.imports()
        if target.partition(".")[0] == "mcp_actors"
        if any(part.startswith("_") for part in [*target.split("."), name or ""])
    ]


def the_engine_imports_no_binding(modules: list[Module]) -> list[str]:
    return [
        f"{module.name} imports {target}"
        for module in modules
        if module.within("mcp_actors")
        for target, _ in module.imports()
        if target.partition(".")[0] == "mcp_transports"
    ]


def eras_do_not_know_each_other(modules: list[Module]) -> list[str]:
    legacy, modern = "mcp_actors._eras.legacy", "mcp_actors._eras.modern"
    return [
        f"{module.name} imports {target}"
        for module in modules
        for mine, other in ((legacy, modern), (modern, legacy))
        if module.within(mine)
        for target, name in module.imports()
        if f"{target}.{name}".startswith(other)
    ]


def client_and_server_do_not_know_each_other(modules: list[Module]) -> list[str]:
    client, server = "mcp_actors._client", "mcp_actors._server"
    return [
        f"{module.name} imports {target}"
        for module in modules
        for mine, other in ((client, server), (server, client))
        if module.within(mine)
        for target, name in module.imports()
        if f"{target}.{name}".startswith(other)
        or target in (other.replace("._", "."), f"mcp_actors.{other.rpartition('_')[2]}")
    ]


def docstrings(tree: ast.Module) -> set[int]:
    """Ids of the nodes that are docstrings, those below assignments included."""
    return {
        id(statement.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for statement in node.body
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    }


def revisions_are_named_in_eras_only(modules: list[Module]) -> list[str]:
    return [
        f"{module.name}:{node.lineno} names a revision: {node.value[:60]!r}"
        for module in modules
        if not module.within("mcp_actors._eras")
        for skipped in [docstrings(module.tree)]
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped
        if any(revision in node.value for revision in REVISIONS)
    ]


def imports_stand_at_the_top(modules: list[Module]) -> list[str]:
    """Neither in functions nor under TYPE_CHECKING; the command line may load its heavy parts late."""
    complaints = []
    for module in modules:
        if module.within("mcp_actors.cli"):
            continue
        if any(name == "TYPE_CHECKING" for _, name in module.imports()):
            complaints.append(f"{module.name} uses TYPE_CHECKING")
        for function in ast.walk(module.tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                complaints += [
                    f"{module.name}:{node.lineno} imports inside a function"
                    for node in ast.walk(function)
                    if isinstance(node, ast.Import | ast.ImportFrom)
                ]
    return complaints


def files_and_functions_are_short(modules: list[Module]) -> list[str]:
    complaints = []
    for module in modules:
        lines = module.text.count("\n")
        if lines > LINES_OF_A_FILE:
            complaints.append(f"{module.name} has {lines} lines")
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > LINES_OF_A_FUNCTION:
                    complaints.append(f"{module.name}.{node.name} has {length} lines")
    return complaints


def words(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def names_say_something(modules: list[Module]) -> list[str]:
    complaints = []
    for module in modules:
        if words(module.name) & BANNED_MODULES:
            complaints.append(f"the module name {module.name}")
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            is_class = isinstance(node, ast.ClassDef)
            if words(node.name) & BANNED_WORDS or (is_class and re.match(r"_*Base([A-Z]|$)", node.name)):
                complaints.append(f"{module.name}.{node.name}")
            # The one of sync functions is the same context, with methods that wait.
            one_context = module.name in CONTEXTS or module.within("mcp_actors.types")
            if is_class and "context" in words(node.name) and not one_context:
                complaints.append(f"{module.name}.{node.name}: there is one Context")
    return complaints


def everything_but_the_bridges_runs_on_trio(modules: list[Module]) -> list[str]:
    return [
        f"{module.name} imports {target}"
        for module in modules
        for target, _ in module.imports()
        if target.partition(".")[0] in {"asyncio", "anyio", "sniffio", "uvloop"}
        and not module.within("mcp_actors.bridges", "mcp_actors.asyncio", "mcp_transports.http.asgi.sides")
    ]


def special_packages_stay_where_they_belong(modules: list[Module]) -> list[str]:
    return [
        f"{module.name} imports {target}"
        for module in modules
        for target, _ in module.imports()
        for package, allowed in ONLY_IN.items()
        if target.partition(".")[0] == package and not module.within(*allowed)
    ]


def nothing_swallows_what_it_does_not_know(modules: list[Module]) -> list[str]:
    """``except BaseException`` must raise or keep what it met; ``except Exception`` must do something."""
    complaints = []
    for module in modules:
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.ExceptHandler):
                continue
            caught = node.type.id if isinstance(node.type, ast.Name) else ""
            where = f"{module.name}:{node.lineno}"
            inside = [inner for statement in node.body for inner in ast.walk(statement)]
            raises = any(isinstance(inner, ast.Raise) for inner in inside)
            keeps = any(isinstance(inner, ast.Name) and inner.id == node.name for inner in inside)
            if (node.type is None or caught == "BaseException") and not raises and not keeps:
                complaints.append(f"{where} drops every exception, cancellation included")
            if caught == "Exception" and isinstance(node.body[0], ast.Pass | ast.Continue):
                complaints.append(f"{where} passes over every Exception")
    return complaints


def http_and_sockets_know_nothing_of_mcp(modules: list[Module]) -> list[str]:
    """The HTTP server and what every listener shares could leave this project as they are."""
    return [
        f"{module.name} imports {target}"
        for module in modules
        for package, allowed in KNOWS_ONLY.items()
        if module.within(package)
        for target, _ in module.imports()
        if ours(target)
        if not any(target == each or target.startswith(each + ".") for each in allowed)
    ]


def groups_of_the_gateway_use_those_below(modules: list[Module]) -> list[str]:
    """A request goes down through the groups, and what an upstream tells goes up by callbacks."""
    names = [f"mcp_actors.gateway.{each}" for each in GATEWAY_GROUPS]
    return [
        f"{module.name} imports {target}"
        for module in modules
        for place, group in enumerate(names)
        if module.within(group)
        for target, _ in module.imports()
        if target.startswith("mcp_actors.gateway")
        if not any(target == each or target.startswith(each + ".") for each in names[place:])
    ]


Rule = Callable[[list[Module]], list[str]]
LONG_FUNCTION = "def f():\n" + "    x = 1\n" * LINES_OF_A_FUNCTION
# Every rule with a module that breaks it: (its name, its text).
RULES: list[tuple[Rule, str, str]] = [
    (only_lower_floors_are_imported, "mcp_actors._wire.codec", "import mcp_actors.types"),
    (only_lower_floors_are_imported, "mcp_actors._actors.link", "from mcp_actors import Server"),
    (only_lower_floors_are_imported, "mcp_actors._eras.legacy.x", "from ... import server"),
    (errors_import_nothing_of_ours, "mcp_actors.errors", "import attrs"),
    (errors_import_nothing_of_ours, "mcp_actors.errors.rpc", "from mcp_actors import logging"),
    (no_import_goes_in_a_circle, "mcp_actors.types.tools", "from mcp_actors.types.tools import Tool"),
    (sans_io_floors_know_no_trio, "mcp_actors._eras.era", "from trio.abc import Channel"),
    (top_floor_uses_public_names_only, "mcp_transports.stdio", "from mcp_actors._wire import codec"),
    (top_floor_uses_public_names_only, "mcp_transports.stdio", "from mcp_actors.framing import _cut"),
    (the_engine_imports_no_binding, "mcp_actors.server", "import mcp_transports.stdio"),
    (eras_do_not_know_each_other, "mcp_actors._eras.legacy.a", "from mcp_actors._eras import modern"),
    (eras_do_not_know_each_other, "mcp_actors._eras.modern.a", "import mcp_actors._eras.legacy.b"),
    (client_and_server_do_not_know_each_other, "mcp_actors._client.a", "import mcp_actors._server.tools"),
    (client_and_server_do_not_know_each_other, "mcp_actors._client.a", "from mcp_actors import _server"),
    (
        client_and_server_do_not_know_each_other,
        "mcp_actors._client.a",
        "from mcp_actors.server import Server",
    ),
    (
        client_and_server_do_not_know_each_other,
        "mcp_actors._server.a",
        "from mcp_actors.client import Client",
    ),
    (revisions_are_named_in_eras_only, "mcp_actors.client", "if version >= '2025-11-25': pass"),
    (
        groups_of_the_gateway_use_those_below,
        "mcp_actors.gateway.upstream.a",
        "from mcp_actors.gateway.lists.b import c",
    ),
    (imports_stand_at_the_top, "mcp_actors.server", "def f():\n    import json"),
    (imports_stand_at_the_top, "mcp_actors.server", "from typing import TYPE_CHECKING"),
    (files_and_functions_are_short, "mcp_actors.server", "x = 1\n" * (LINES_OF_A_FILE + 1)),
    (files_and_functions_are_short, "mcp_actors.server", LONG_FUNCTION),
    (names_say_something, "mcp_actors._actors.utils", ""),
    (names_say_something, "mcp_actors.server", "class SessionManager: ..."),
    (names_say_something, "mcp_actors.server", "class BaseSession: ..."),
    (names_say_something, "mcp_actors.server", "class RequestContext: ..."),
    (names_say_something, "mcp_actors._eras.common", ""),
    (names_say_something, "mcp_actors.server", "def json_helper(): ..."),
    (everything_but_the_bridges_runs_on_trio, "mcp_actors.server", "import asyncio"),
    (special_packages_stay_where_they_belong, "mcp_actors.server", "from rich.table import Table"),
    (http_and_sockets_know_nothing_of_mcp, "mcp_transports.http.h1.server", "import mcp_actors.errors"),
    (http_and_sockets_know_nothing_of_mcp, "mcp_transports.http.h1.x", "from mcp_transports.http import sse"),
    (http_and_sockets_know_nothing_of_mcp, "mcp_transports.http.h1.x", "from ..server import transport"),
    (http_and_sockets_know_nothing_of_mcp, "mcp_transports._sockets", "from mcp_actors import errors"),
    (http_and_sockets_know_nothing_of_mcp, "mcp_transports._poller", "import mcp_transports._sockets"),
    (http_and_sockets_know_nothing_of_mcp, "mcp_transports._ticker", "import mcp_transports.http.h1.limits"),
    (nothing_swallows_what_it_does_not_know, "mcp_actors.server", "try: f()\nexcept BaseException: g()"),
    (nothing_swallows_what_it_does_not_know, "mcp_actors.server", "try: f()\nexcept Exception: pass"),
]
EACH_RULE = pytest.mark.parametrize(
    "rule", list(dict.fromkeys(rule for rule, _, _ in RULES)), ids=lambda rule: rule.__name__
)
# What looks like a breach and is none.
GOOD = '''"""Speaks 2025-11-25 and others."""

import trio
from mcp_actors.abc import Frame
from mcp_actors.errors import McpError


class Database:
    """One conversation, in 2026-07-28 style."""

    def run(self) -> None:
        try:
            self.revision = "x" if self else "y"
        except BaseException:
            raise
'''


@pytest.fixture(scope="module")
def sources() -> list[Module]:
    return load_sources()


@EACH_RULE
def test_the_house_obeys(rule: Rule, sources: list[Module]) -> None:
    assert rule(sources) == []


@pytest.mark.parametrize(("rule", "name", "text"), RULES, ids=lambda value: getattr(value, "__name__", ""))
def test_the_rule_can_fail(rule: Rule, name: str, text: str, sources: list[Module]) -> None:
    assert rule([Module(name, text, sources[0].known)]) != []


@EACH_RULE
def test_the_rule_lets_good_code_pass(rule: Rule) -> None:
    assert rule([Module("mcp_actors.server", GOOD)]) == []


def test_every_module_has_a_floor(sources: list[Module]) -> None:
    assert {module.name.partition(".")[0] for module in sources} == set(SOURCES)
    assert all(0 <= module.floor <= TOP_FLOOR for module in sources)
    with pytest.raises(KeyError, match="has no floor"):
        floor_of("mcp_actors.cupboard")
