"""The rules of the tests as tests: each can fail, and none waits by guessing how long something takes.

As in ``test_architecture.py``, a rule is a function from modules to complaints: it finds nothing in the real tests, and
something in a snippet that breaks it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parent
# What fails a test when nothing happens, or the wrong thing.
ASSERTING = frozenset({"raises", "RaisesGroup", "warns", "fail", "fail_after"})
# The sleeps of these are the rate at which an attack arrives; nothing waits for them.
PACED = frozenset({"transports/http/test_server_expiry.py"})

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """A file of the tests; ``virtual_time`` says that its folder gives every test the clock of a mock."""

    name: str
    text: str
    virtual_time: bool = False
    imported: list[Module] = field(default_factory=list)

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def functions(self) -> list[Function]:
        return [node for node in ast.walk(self.tree) if isinstance(node, Function)]

    @cached_property
    def polling(self) -> frozenset[int]:
        """Ids of the nodes inside ``while`` loops."""
        loops = [node for node in ast.walk(self.tree) if isinstance(node, ast.While)]
        return frozenset(id(node) for loop in loops for node in ast.walk(loop))

    @property
    def tests(self) -> Iterator[Function]:
        if Path(self.name).name.startswith("test_"):
            yield from (each for each in self.functions if each.name.startswith("test_"))

    @cached_property
    def asserting(self) -> frozenset[str]:
        """Names of functions here that assert, themselves or through others that are defined here or imported."""
        known = set(ASSERTING).union(*(module.asserting for module in self.imported))
        while found := {each.name for each in self.functions if asserts(each, known)} - known:
            known |= found
        return frozenset(known)


def load_tests() -> list[Module]:
    paths = sorted(TESTS.rglob("*.py"))
    modules: dict[Path, Module] = {}
    for path in paths:
        conftest = path.with_name("conftest.py")
        virtual_time = conftest.exists() and "MockClock(" in conftest.read_text()
        modules[path] = Module(str(path.relative_to(TESTS)), path.read_text(), virtual_time)
    for path, module in modules.items():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom):
                last = f"{(node.module or '').rpartition('.')[2]}.py"
                module.imported.extend(
                    modules[found]
                    for found in (path.with_name(last), TESTS / last)
                    if found in modules
                    and found != path  # a file of the same name in another folder is meant
                )
    return list(modules.values())


def called(node: ast.AST) -> str | None:
    function = node.func if isinstance(node, ast.Call) else None
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else None


@cache
def facts(function: Function) -> tuple[bool, frozenset[str]]:
    """Whether it asserts or raises an `AssertionError` itself, and the names that it calls or hands to calls."""
    itself, names = False, set[str]()
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            itself = True
        elif isinstance(node, ast.Raise):
            itself |= node.exc is not None and "AssertionError" in ast.unparse(node.exc)
        elif isinstance(node, ast.Call):
            names.update(argument.id for argument in node.args if isinstance(argument, ast.Name))
            names.add(called(node) or "")
    return itself, frozenset(names)


def asserts(function: Function, known: set[str]) -> bool:
    """Whether it asserts, raises an `AssertionError`, or calls or starts a function that is known to."""
    itself, names = facts(function)
    return itself or not known.isdisjoint(names)


def own_nodes(function: Function) -> Iterator[ast.AST]:
    """The nodes of a function but for the functions inside it, which are often handlers of a server."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, Function | ast.Lambda):
            waiting += ast.iter_child_nodes(node)


# -- rules -------------------------------------------------------------------------------------------------------------


def every_test_asserts(modules: list[Module]) -> list[str]:
    return [
        f"{module.name}: {test.name} asserts nothing"
        for module in modules
        for test in module.tests
        if not asserts(test, set(module.asserting))
    ]


def no_test_sleeps_in_real_time(modules: list[Module]) -> list[str]:
    """But for a sleep that a loop repeats until something is true."""
    return [
        f"{module.name}:{node.lineno} sleeps: wait for what shall happen, or take the clock of a mock"
        for module in modules
        if not module.virtual_time and module.name not in PACED
        for test in module.tests
        if not any("clock" in argument.arg for argument in test.args.args)
        for node in own_nodes(test)
        if isinstance(node, ast.Call) and called(node) == "sleep" and id(node) not in module.polling
    ]


def nothing_waits_a_guessed_time_for_the_kernel(modules: list[Module]) -> list[str]:
    """``wait_all_tasks_blocked`` with a cushion, but for one that a loop repeats until something is true."""
    return [
        f"{module.name}:{node.lineno} guesses how long the kernel needs"
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and called(node) == "wait_all_tasks_blocked"
        if (node.args or node.keywords) and id(node) not in module.polling
    ]


RULES: list[tuple[Callable[[list[Module]], list[str]], str]] = [
    (every_test_asserts, "def test_it():\n    helper(1)\ndef helper(n):\n    return n"),
    (no_test_sleeps_in_real_time, "async def test_it():\n    await trio.sleep(0.1)\n    assert done"),
    (
        nothing_waits_a_guessed_time_for_the_kernel,
        "async def helper():\n    await trio.testing.wait_all_tasks_blocked(0.01)",
    ),
]


@pytest.fixture(scope="module")
def tests() -> list[Module]:
    return load_tests()


@pytest.mark.parametrize("rule", [rule for rule, _ in RULES], ids=lambda rule: str(rule.__name__))
def test_the_tests_obey(rule: Callable[[list[Module]], list[str]], tests: list[Module]) -> None:
    assert rule(tests) == []


@pytest.mark.parametrize(("rule", "snippet"), RULES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_rule_can_fail(rule: Callable[[list[Module]], list[str]], snippet: str) -> None:
    assert len(rule([Module("test_snippet.py", snippet)])) == 1


@pytest.mark.parametrize(
    "snippet",
    [
        "def test_it():\n    assert True",
        "def test_it():\n    with pytest.raises(ValueError):\n        f()",
        "def test_it():\n    trio.run(check)\nasync def check():\n    assert True",
        "def test_it():\n    Peer().check()\nclass Peer:\n    def check(self):\n        self.really()\n"
        "    def really(self):\n        raise AssertionError('no')",
        "async def test_it(autojump_clock):\n    await trio.sleep(5)\n    assert True",
        "async def test_it():\n    async def tool():\n        await trio.sleep(60)\n    assert True",
        "async def until(true):\n    while not true():\n        await wait_all_tasks_blocked(0.001)",
    ],
)
def test_no_rule_complains_of_what_is_well(snippet: str) -> None:
    assert [complaint for rule, _ in RULES for complaint in rule([Module("test_snippet.py", snippet)])] == []


def test_a_helper_in_another_file_counts_where_it_is_imported() -> None:
    helper = Module("peers.py", "def check(value):\n    assert value")
    test = "def test_it():\n    check(1)"
    assert every_test_asserts([Module("test_it.py", test, imported=[helper])]) == []
    assert every_test_asserts([Module("test_it.py", test)]) == ["test_it.py: test_it asserts nothing"]
