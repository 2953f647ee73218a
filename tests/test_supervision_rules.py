"""No task is started but through `mcp_actors.supervision.containment`, and its table has no row too many.

What starts a task past the table is listed here with its reason, and leaves the list when it is gone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import permutations

import pytest

from mcp_actors.supervision import task_kinds
from mcp_actors.supervision.task_kinds import TASKS
from tests.test_architecture import Module, load_sources

pytestmark = pytest.mark.slow

# Programs, examples and what tests are made of: they are users of the engine, and their failures are their own.
USERS = (
    "mcp_actors.cli.bench",
    "mcp_actors.cli",
    "mcp_actors.examples",
    "mcp_actors.testing",
    "mcp_actors.testing.simulate",
)
# What starts tasks beside a nursery's methods.
STARTERS = {"serve_tcp", "serve_listeners", "serve_ssl_over_tcp", "spawn_system_task"}
# (module, function) -> why it may start a task by itself.
EXCEPTIONS = {
    ("mcp_actors.supervision.containment", "start"): "it is what everything else starts tasks with",
    ("mcp_actors.supervision.containment", "start_and_wait"): "it is what everything else starts tasks with",
    ("mcp_actors.supervision.containment", "start_again"): "it is what everything else starts tasks with",
    (
        "mcp_actors._server.runtime",
        "_supervise",
    ): "a transport that raises cannot listen, and ends the server",
    (
        "mcp_actors.bridges.trio_bridge",
        "begin",
    ): "the program's own loop has no nursery of ours; the task contains what its function raises",
    (
        "mcp_actors._actors.task_pool",
        "_wake",
    ): "a worker contains each of its calls, and costs one task a call",
}


class StartFinder(ast.NodeVisitor):
    """Collects the functions that start tasks, with the line."""

    def __init__(self) -> None:
        self.found: list[tuple[str, int]] = []
        self._function = ""

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        outer, self._function = self._function, node.name
        self.generic_visit(node)
        self._function = outer

    visit_FunctionDef = visit_AsyncFunctionDef = _visit_function

    def _find(self, node: ast.expr) -> None:
        self.found.append((self._function, node.lineno))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        is_nursery = isinstance(node.value, ast.Name | ast.Attribute) and "nursery" in ast.unparse(node.value)
        if node.attr == "start_soon" or node.attr in STARTERS or (node.attr == "start" and is_nursery):
            self._find(node)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in STARTERS:
            self._find(node)

    def visit_Await(self, node: ast.Await) -> None:
        call = node.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "start":
            self._find(call)
            for each in (*call.args, *call.keywords):
                self.visit(each)
        else:
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if any(each.arg in ("spawn", "handler_nursery") for each in node.keywords):
            self._find(node)
        self.generic_visit(node)


def task_starts(modules: list[Module]) -> Iterator[tuple[str, str, int]]:
    """Yields the module, the function and the line of everything that starts a task by itself."""
    for module in modules:
        if not module.within(*USERS):
            finder = StartFinder()
            finder.visit(module.tree)
            yield from ((module.name, function, line) for function, line in finder.found)


def tasks_are_started_through_the_table(modules: list[Module]) -> list[str]:
    return [
        f"{module}:{line} ({function}) starts a task past mcp_actors.supervision.containment"
        for module, function, line in task_starts(modules)
        if (module, function) not in EXCEPTIONS
    ]


def rows_without_use(modules: list[Module], rows: set[str]) -> set[str]:
    """Returns the names of rows that no module but the table's own refers to."""
    used = {
        node.id
        for module in modules
        if module.name != "mcp_actors.supervision.task_kinds"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Name)
    }
    return rows - used


def rows_that_look_alike(names: list[str]) -> list[str]:
    """Returns which name begins with another one: a task's name would not say which row it belongs to."""
    return [
        f"{one!r} begins with {other!r}" for one, other in permutations(names, 2) if one.startswith(other)
    ]


@pytest.fixture(scope="module")
def sources() -> list[Module]:
    return load_sources()


def test_every_task_is_started_through_the_table(sources: list[Module]) -> None:
    assert tasks_are_started_through_the_table(sources) == []


def test_every_exception_is_still_needed(sources: list[Module]) -> None:
    assert {(module, function) for module, function, _ in task_starts(sources)} >= set(EXCEPTIONS)


@pytest.mark.parametrize(
    "statement",
    [
        "nursery.start_soon(f)",
        "self._connections.start_soon(f)",
        "begin = nursery.start_soon",
        "await nursery.start(f)",
        "await self._service.start(f)",
        "begin(nursery.start)",
        "trio.lowlevel.spawn_system_task(f)",
        "spawn_system_task(f)",
        "Session(channel, spawn=nursery)",
        "await trio.serve_tcp(f, 80)",
        "await trio.serve_listeners(f, [], handler_nursery=nursery)",
    ],
)
def test_a_task_that_is_started_past_the_table_is_found(statement: str) -> None:
    module = Module("mcp_transports.stdio.server", f"async def f(nursery):\n    {statement}\n")
    assert tasks_are_started_through_the_table([module])


def test_a_task_that_is_started_through_the_table_is_none() -> None:
    text = """async def f(nursery, pool, response):
        start(nursery, SESSION, f)
        start_again(nursery, ACCEPT, f)
        await start_and_wait(nursery, SESSION, f)
        pool.start(call)
        self._response.start(200)
        session.start_task(SESSION, f)
    """
    assert tasks_are_started_through_the_table([Module("mcp_actors.server", text)]) == []


def test_every_row_is_used(sources: list[Module]) -> None:
    rows = {name for name, value in vars(task_kinds).items() if value in TASKS}
    assert len(rows) == len(TASKS)
    assert rows_without_use(sources, rows) == set()


def test_a_row_that_is_not_used_is_found() -> None:
    modules = [
        Module("mcp_actors.server", "start(nursery, SESSION, f)"),
        Module("mcp_actors.supervision.task_kinds", "SESSION = LEFT_OVER = 1"),
    ]
    assert rows_without_use(modules, {"SESSION", "LEFT_OVER"}) == {"LEFT_OVER"}


def test_every_name_of_a_task_belongs_to_one_row() -> None:
    assert rows_that_look_alike([each.name for each in TASKS]) == []


def test_names_that_look_alike_are_found() -> None:
    assert rows_that_look_alike(["call", "call worker", "session"]) == ["'call worker' begins with 'call'"]
