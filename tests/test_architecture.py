"""The rules of the house as tests: rings, floors, names, and how much there is of everything.

Every rule is a function from modules to complaints. It is run on the real sources, where it must find nothing, and on a
snippet that breaks it, where it must find something: a rule that cannot fail protects nothing. ``tests/house.py`` reads
the modules, and prints the counts that the last tests here bound.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from documentation_rules import words

from tests.house import (
    Module,
    arrows,
    circles,
    docstrings,
    floors,
    fragments,
    load,
    repeated_names,
    rooms,
    single_protocols,
)

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent

# From the inside: a ring imports itself and those before it. ``docs/why/architecture.md`` has them as a picture.
RINGS = {
    "words": ("errors", "types", "supervision", "abc"),
    "engine": ("_wire", "_schema", "_eras", "auth", "_actors", "shared", "bridges", "_client", "_server"),
    "faces": ("client", "server", "extensions"),
    "features": ("middleware", "tasks", "telemetry", "testing", "gateway", "openapi", "asyncio", "sync"),
    "bindings and programs": ("mcp_transports", "cli", "examples"),
}
# The floor of a room is one above the highest that it imports: what a drawing of the imports shows.
FLOORS = {
    "errors": 0,
    "_wire": 1,
    "types": 1,
    "_schema": 2,
    "supervision": 2,
    "_eras": 3,
    "abc": 3,
    "auth": 3,
    "bridges": 3,
    "_actors": 4,
    "asyncio": 4,
    "shared": 4,
    "sync": 4,
    "_client": 5,
    "_server": 5,
    "client": 6,
    "extensions": 6,
    "server": 6,
    "telemetry": 6,
    "mcp_transports": 7,
    "middleware": 7,
    "openapi": 7,
    "tasks": 7,
    "testing": 7,
    "examples": 8,
    "gateway": 8,
    "cli": 9,
}
# Their job is to find what is further outside by its name: bindings and extensions enter there, by an entry point or a
# call of a function. The door of the package names the faces, and what lies beside them. Nothing else names what it may
# not import.
REGISTRIES = ("mcp_actors", "mcp_actors.abc.discovery")
# Rooms that know neither Trio nor sockets nor threads.
SANS_IO = ("errors", "types", "_wire", "_schema", "_eras", "auth")
# From the top: each group of the gateway uses itself and those after it.
GATEWAY_GROUPS = (
    ("gateway", "live"),
    ("forwarded_skills", "forwarding", "forwarded_tasks", "results", "call_options"),
    ("routes", "lists", "listing", "names", "upstream_subscriptions"),
    ("upstream", "callbacks", "connections", "breaker", "upstream_settings"),
    ("held_calls",),
)
REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")
LINES_OF_A_FUNCTION = 80
FOLDERS_BELOW_A_PACKAGE = 2
BANNED_WORDS = {"util", "utils", "helper", "helpers", "manager", "runner", "wrapper", "lowlevel"}
BANNED_MODULES = BANNED_WORDS | {"common", "misc"}
CONTEXTS = (
    "mcp_actors._server.context",
    "mcp_actors._server.asyncio_context",
    "mcp_actors._server.isolated_context",
)
# Third-party packages that only some part of the house may know.
ONLY_IN = {
    "click": ("mcp_actors.cli",),
    "coredis": ("mcp_actors.shared.redis",),
    "opentelemetry": ("mcp_actors.telemetry.otel", "mcp_actors.telemetry.otel_exporting", "mcp_actors.cli"),
    "rich": ("mcp_actors.cli",),
    "watchfiles": ("mcp_actors.examples", "mcp_actors.cli.reload"),
}
# Packages of ours that know nothing of ours but this, and themselves.
_SHARED_BY_LISTENERS = (
    "mcp_transports._sockets",
    "mcp_transports._poller",
)
KNOWS_ONLY = {
    "mcp_transports.http.h1": ("mcp_transports.http.h1", "mcp_actors.supervision", *_SHARED_BY_LISTENERS),
    **dict.fromkeys(_SHARED_BY_LISTENERS, ("mcp_actors.supervision",)),
}
# Protocols of one implementation, with the reason for each.
REASONS_OF_PROTOCOLS = {
    "mcp_actors._actors.beats.ReportedCall": "a call makes its own reports: naming its class would be a circle",
    "mcp_actors._actors.inbound_call.Voice": "public in `mcp_actors.extensions`: programs implement it",
    "mcp_actors._client.options.InProcessServer": "the client does not import the server, which implements it",
    "mcp_actors._server.registry.Follower": "a registry knows nothing of mounts: naming their class would be a circle",
    "mcp_actors._server.features.OfferedExtension": "`--reload` has a second one, which sets its members itself",
}


def load_sources() -> list[Module]:
    return [module for module in load(ROOT) if module.name.partition(".")[0] != "pytest_mcp_actors"]


def ours(name: str) -> bool:
    return name.partition(".")[0] in ("mcp_actors", "mcp_transports")


def room_of(name: str) -> str:
    return Module(name, "").room


def ring_of(room: str) -> int:
    for number, members in enumerate(RINGS.values()):
        if room in members:
            return number
    if room == "mcp_actors":  # the door, which hands on names of the faces
        return list(RINGS).index("faces")
    if room == "__main__":
        return len(RINGS)
    raise KeyError(f"{room} is in no ring: give it one in the house map and here")


# -- rules ------------------------------------------------------------------------------------------------------------


def only_inner_rings_are_imported(modules: list[Module]) -> list[str]:
    """A string that names a module of ours counts as an import of it."""
    return [
        f"{module.name} (ring {ring_of(module.room)}) imports {target} (ring {ring_of(room_of(target))})"
        for module in modules
        if module.name not in REGISTRIES
        for target in sorted({name for name, _ in module.imports() if ours(name)} | module.named())
        if ring_of(room_of(target)) > ring_of(module.room)
    ]


def only_lower_floors_are_imported(modules: list[Module]) -> list[str]:
    return [
        f"{module.name} (floor {FLOORS[module.room]}) names {target} (floor {FLOORS[room_of(target)]})"
        for module in modules
        if module.name not in REGISTRIES and module.room in FLOORS
        for target in sorted({name for name, _ in module.imports() if ours(name)} | module.named())
        if room_of(target) in FLOORS and room_of(target) != module.room
        if FLOORS[room_of(target)] >= FLOORS[module.room]
    ]


def errors_import_nothing_of_ours(modules: list[Module]) -> list[str]:
    return [
        f"{module.name} imports {target}"
        for module in modules
        if module.within("mcp_actors.errors")
        for target, _ in module.imports()
        if target.partition(".")[0] not in sys.stdlib_module_names
        and not target.startswith("mcp_actors.errors")
    ]


def no_import_goes_in_a_circle(modules: list[Module]) -> list[str]:
    graph = {
        module.name: module.static | (set() if module.name in REGISTRIES else module.named())
        for module in modules
    }
    return [" <-> ".join(circle) for circle in circles(graph)] + [
        f"{module.name} imports itself"
        for module in modules
        if any(target == module.name and name is not None for target, name in module.imports())
    ]


def no_folder_lies_deep(modules: list[Module]) -> list[str]:
    return [
        f"{module.name} lies more than {FOLDERS_BELOW_A_PACKAGE} folders deep"
        for module in modules
        if module.folder.count(".") > FOLDERS_BELOW_A_PACKAGE
    ]


def sans_io_rooms_know_no_trio(modules: list[Module]) -> list[str]:
    banned = {"trio", "structlog", "socket", "select", "selectors", "threading", "subprocess"}
    return [
        f"{module.name} imports {target}"
        for module in modules
        if module.room in SANS_IO
        for target, _ in module.imports()
        if target.partition(".")[0] in banned
    ]


def the_outer_ring_uses_public_names_only(modules: list[Module]) -> list[str]:
    """The engines of `bench`, `inspect` and `--reload` look below what is public; that is what they are for."""
    return [
        f"{module.name} imports {target}{'.' + name if name else ''}"
        for module in modules
        if module.within("mcp_actors.cli", "mcp_actors.examples", "mcp_actors.tasks", "mcp_transports")
        and not module.within("mcp_actors.cli.bench", "mcp_actors.cli.inspect", "mcp_actors.cli.reload")
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


def functions_are_short(modules: list[Module]) -> list[str]:
    """A file is as long as its concept is; a function fits a screen."""
    return [
        f"{module.name}.{node.name} has {length} lines"
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (length := (node.end_lineno or node.lineno) - node.lineno + 1) > LINES_OF_A_FUNCTION
    ]


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
            # Those of sync functions, and of functions in processes, are the same context, with methods that wait.
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
        and not module.within("mcp_actors.bridges", "mcp_actors.asyncio", "mcp_transports.http.asgi.loops")
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
    group_of = {
        f"mcp_actors.gateway.{name}": place for place, names in enumerate(GATEWAY_GROUPS) for name in names
    }
    return [
        f"{module.name} imports {target}"
        for module in modules
        if module.name in group_of
        for target, _ in module.imports()
        if group_of.get(target, len(GATEWAY_GROUPS)) < group_of[module.name]
    ]


def no_protocol_has_one_implementation(modules: list[Module]) -> list[str]:
    return [each for each in single_protocols(modules) if each.partition(":")[0] not in REASONS_OF_PROTOCOLS]


Rule = Callable[[list[Module]], list[str]]
LONG_FUNCTION = "def f():\n" + "    x = 1\n" * LINES_OF_A_FUNCTION
# Every rule with a module that breaks it: (its name, its text).
RULES: list[tuple[Rule, str, str]] = [
    (only_inner_rings_are_imported, "mcp_actors._wire.codec", "import mcp_actors.server"),
    (only_inner_rings_are_imported, "mcp_actors._actors.link", "from mcp_actors import Server"),
    (only_inner_rings_are_imported, "mcp_actors._server.features", "load('mcp_actors.tasks')"),
    (only_inner_rings_are_imported, "mcp_actors.gateway.live", "load('mcp_actors.cli.call')"),
    (only_lower_floors_are_imported, "mcp_actors._wire.codec", "import mcp_actors._eras.era"),
    (only_lower_floors_are_imported, "mcp_actors._eras.legacy", "from .. import _actors"),
    (only_lower_floors_are_imported, "mcp_actors._actors.link", "load('mcp_actors._client.requests')"),
    (errors_import_nothing_of_ours, "mcp_actors.errors", "import attrs"),
    (errors_import_nothing_of_ours, "mcp_actors.errors.rpc", "from mcp_actors import types"),
    (no_import_goes_in_a_circle, "mcp_actors.types.tools", "from mcp_actors.types.tools import Tool"),
    (no_folder_lies_deep, "mcp_transports.http.server.routes.table", ""),
    (sans_io_rooms_know_no_trio, "mcp_actors._eras.era", "from trio.abc import Channel"),
    (the_outer_ring_uses_public_names_only, "mcp_transports.stdio", "from mcp_actors._wire import codec"),
    (
        the_outer_ring_uses_public_names_only,
        "mcp_transports.stdio",
        "from mcp_actors.abc.framing import _cut",
    ),
    (the_engine_imports_no_binding, "mcp_actors.server", "import mcp_transports.stdio"),
    (eras_do_not_know_each_other, "mcp_actors._eras.legacy", "from mcp_actors._eras import modern"),
    (eras_do_not_know_each_other, "mcp_actors._eras.modern", "import mcp_actors._eras.legacy"),
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
        "mcp_actors.gateway.upstream",
        "from mcp_actors.gateway.lists import c",
    ),
    (
        no_protocol_has_one_implementation,
        "mcp_actors._actors.a",
        "class P(Protocol):\n    def f(self): ...\nclass A:\n    def f(self): ...",
    ),
    (imports_stand_at_the_top, "mcp_actors.server", "def f():\n    import json"),
    (imports_stand_at_the_top, "mcp_actors.server", "from typing import TYPE_CHECKING"),
    (functions_are_short, "mcp_actors.server", LONG_FUNCTION),
    (names_say_something, "mcp_actors._actors.utils", ""),
    (names_say_something, "mcp_actors.server", "class SessionManager: ..."),
    (names_say_something, "mcp_actors.server", "class BaseSession: ..."),
    (names_say_something, "mcp_actors.server", "class RequestContext: ..."),
    (names_say_something, "mcp_actors._eras.common", ""),
    (names_say_something, "mcp_actors.server", "def json_helper(): ..."),
    (everything_but_the_bridges_runs_on_trio, "mcp_actors.server", "import asyncio"),
    (special_packages_stay_where_they_belong, "mcp_actors.server", "from rich.table import Table"),
    (http_and_sockets_know_nothing_of_mcp, "mcp_transports.http.h1.http_server", "import mcp_actors.errors"),
    (http_and_sockets_know_nothing_of_mcp, "mcp_transports.http.h1.x", "from mcp_transports.http import sse"),
    (http_and_sockets_know_nothing_of_mcp, "mcp_transports.http.h1.x", "from ..server import endpoint"),
    (http_and_sockets_know_nothing_of_mcp, "mcp_transports._sockets", "from mcp_actors import errors"),
    (http_and_sockets_know_nothing_of_mcp, "mcp_transports._poller", "import mcp_transports._sockets"),
    (http_and_sockets_know_nothing_of_mcp, "mcp_transports._poller", "import mcp_transports.http.h1.limits"),
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
    assert rule([Module(name, text, sources[0].known | {name})]) != []


@EACH_RULE
def test_the_rule_lets_good_code_pass(rule: Rule) -> None:
    assert rule([Module("mcp_actors.server", GOOD)]) == []


def test_every_room_has_a_ring_and_a_floor(sources: list[Module]) -> None:
    there = rooms(sources)
    assert there == {room for members in RINGS.values() for room in members}
    with pytest.raises(KeyError, match="is in no ring"):
        ring_of("cupboard")


def test_the_floors_are_those_of_a_drawing(sources: list[Module]) -> None:
    assert floors(arrows(sources), rooms(sources)) == FLOORS


def test_there_is_no_fragment(sources: list[Module]) -> None:
    assert fragments(sources) == []


def test_a_fragment_is_found() -> None:
    known = frozenset({"mcp_actors._a.b", "mcp_actors._a.c"})
    user = Module("mcp_actors._a.b", "from mcp_actors._a import c", known)

    assert len(fragments([user, Module("mcp_actors._a.c", "x = 1\n", known)])) == 1
    assert fragments([user, Module("mcp_actors._a.c", "x = 1\n" * 80, known)]) == []


def test_a_file_name_says_which_file_it_is(sources: list[Module]) -> None:
    assert repeated_names(sources) == []


def test_a_repeated_name_is_found() -> None:
    assert len(repeated_names([Module(f"mcp_actors.{each}.tasks", "") for each in "abcd"])) == 1


# What the product may consist of: it may shrink, and whoever needs more of something changes the house map first. The
# eight files of the example authorization server, and its arrow to ``auth``, are a whole program of their own. Servers
# of APIs are a room of eight files with six arrows, a command, and what calls applications in asyncio, with three.
# Workers keep what they share in their supervisor: two files, and an arrow from ``cli`` to the stores in memory. A
# gateway checks the arguments of reshaped tools by their schemas: an arrow to ``_schema``. Providers are three files:
# the contract with what asks one, lists and names that go on into them, and the one of a folder. What happens once is
# one, and a REST API is a folder of three of ``cli``. Claims are common to what happens once and to calls with keys,
# which are one file; approvals are one, and their pages another. Skills are six files: their format with the YAML that
# they share with documents of APIs, what an entry is, and what a server, a client and a gateway do with them. Deadlines
# are one, and so is the kit ``check_tool``. The watchdog is two: what looks at loops, and what it has seen, which
# clients read too. Turns and large results are one each. Large results are kept in the shared state, an arrow from
# ``middleware`` to the contract of that; skills and documents of APIs read YAML in one place, in ``_wire``; and the kit
# ends what a server has claimed. Clients that watch have one file, what they keep of answers has one, and ETags one.
# Apps are four: what a page is, and what a server, a client and a gateway do with one.
# Their example is one. Locks, recordings that are servers, cards and what they need are eight. Parts of results
# and messages to calls are one each, and what a client does with them is one. Functions in
# processes are six: what is decided at registration with the pool, a call seen from the server, starting a process,
# the messages, the context inside, and the process itself.
@pytest.mark.parametrize(("what", "most"), [("files", 478), ("rooms", 27), ("arrows", 145)])
def test_the_house_stays_small(what: str, most: int, sources: list[Module]) -> None:
    counted = {"files": len(load(ROOT)), "rooms": len(rooms(sources)), "arrows": len(arrows(sources))}
    assert counted[what] <= most


def test_an_arrow_is_counted_once() -> None:
    known = frozenset({"mcp_actors._actors.a", "mcp_actors._wire.a", "mcp_actors._wire.b"})
    text = "from mcp_actors._wire import a, b"
    modules = [Module(name, text if "actors.a" in name else "", known) for name in sorted(known)]

    assert arrows(modules) == {("_actors", "_wire")}
    assert floors(arrows(modules), rooms(modules)) == {"_wire": 0, "_actors": 1}


def test_the_tests_stay_few() -> None:
    # What runs in an environment of somebody else has to be a file of its own there, an application of FastAPI for one.
    # A REST API is a folder of two, as it is in the product, and mcpo beside it is a program of others. What happens
    # once has its rules in one, and calls with seeds in another, which can be a hundred thousand. Keys and approvals
    # are a file of the server and one of the gateway each, and pages are one; keys have four more, for losses, attacks,
    # kills and clients. Skills have one for each of their files, and one for other implementations, of which FastMCP is
    # one more in its environment, as it is for tasks. Deadlines, and the kit
    # `check_tool`, have one each, and official clients that use all of it one with its server. What blocks a loop,
    # turns and large results have one each. What clients watch and share has two, and ETags have one. Turns over
    # processes have one, and nodes that are killed one. Apps have one for each of a server, a client and a gateway, and
    # one for other implementations, whose servers are one in their environments, with a host in a browser; and their
    # example has one. Locks have one for clients, gateways and commands each; recordings have one for mocks, one for
    # their commands and one for peers, and cards have one. Parts of results have one for servers, gateways
    # and cut connections each, and one for the official clients, with its server and its client. Functions in processes
    # have one, another one with the functions, since a process imports them, and one for the command that serves them.
    # Messages to tasks have one, and so has the command that makes a server of an API.
    assert len(list((ROOT / "tests").rglob("*.py"))) <= 546
