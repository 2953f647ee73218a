"""The types of the clients for programs without Trio: ``.pyi`` files that are written from the client of the engine.

``python tests/test_faces.py`` writes them again; the tests compare, so that the classes cannot drift apart.
"""

from __future__ import annotations

import ast
import builtins
import copy
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mcp_actors import client
from mcp_actors.bridges.faces import Face
from mcp_actors.gateway import client_group

ROOT = Path(__file__).parent.parent
WORLDS = ("asyncio", "sync")
ORIGINALS: dict[str, type] = {
    "Client": client.Client,
    "ClientGroup": client_group.ClientGroup,
    "ClientPool": client.ClientPool,
    "TaskHandle": client.TaskHandle,
    "Listener": client.Listener,
    "ToolStream": client.ToolStream,
}
# The members of the originals that programs without Trio have no use for: those of Trio, and those for the client.
LEFT_OUT = {
    "Client": set(),
    "ClientGroup": {"for_each"},
    "ClientPool": set(),
    "TaskHandle": {"look", "read", "wait", "wait_or_cancel"},
    "Listener": {"deliver", "end", "raise_if_lost", "acknowledged", "missed", "on_end", "on_missed"},
    "ToolStream": set(),
}
# What a client makes, with the types that its iteration has.
MADE_BY_CLIENT = {"TaskHandle": "", "Listener": "Event", "ToolStream": "Any"}
RENAMED = {"aclose": "close"}
DUNDERS = {
    "asyncio": ("__init__", "__aenter__", "__aexit__", "__aiter__", "__anext__", "__getitem__"),
    "sync": ("__init__", "__enter__", "__exit__", "__iter__", "__next__", "__getitem__"),
}
# Middleware is plain functions here, where that of the engine's own client is async.
CALLBACKS = {"ClientMiddleware": "Callable[[ClientCall, Callable[..., Any]], Any]"}
ALIASES = "\n".join(f"_{name}: TypeAlias = {meaning}" for name, meaning in CALLBACKS.items())
IMPORTED = """\
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Self, TypeAlias
from mcp_actors.client import ClientCall
"""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def path_of(world: str) -> Path:
    return ROOT / "mcp_actors" / ("asyncio/__init__.pyi" if world == "asyncio" else f"{world}.pyi")


# -- the source of a class --------------------------------------------------------------------------------------------


def sources_of(cls: type) -> dict[str, list[tuple[Function, ModuleType]]]:
    """The functions of a class and of those above it by name, all overloads of each, in the order of the source."""
    found: dict[str, list[tuple[Function, ModuleType]]] = {}
    for each in reversed(cls.__mro__):
        if each.__module__.partition(".")[0] != "mcp_actors" or not inspect.isclass(each):
            continue
        module = sys.modules[each.__module__]
        tree = ast.parse(inspect.getsource(module))
        nodes = [
            node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == each.__name__
        ]
        own: dict[str, list[tuple[Function, ModuleType]]] = {}
        for node in nodes[0].body if nodes else ():
            if isinstance(node, Function):
                own.setdefault(node.name, []).append((node, module))
        found.update(own)
    return found


def is_made_by_client(name: str, member: str) -> bool:
    return member == "__init__" and name in MADE_BY_CLIENT


def is_overload(node: Function) -> bool:
    return any(ast.unparse(each).endswith("overload") for each in node.decorator_list)


# -- a stub -----------------------------------------------------------------------------------------------------------


class Stub:
    """The text of one module's types, and what it has to import for them."""

    def __init__(self, world: str) -> None:
        self.world = world
        self.module = importlib.import_module(f"mcp_actors.{world}")
        self.imports: set[str] = set(IMPORTED.splitlines())
        written = [name for name in self.module.__all__ if name not in ORIGINALS]
        if written:
            self.imports.add(f"from mcp_actors.{world}.serving import {', '.join(written)}")

    def text(self) -> str:
        classes = [self.stub_of(name) for name in self.module.__all__ if name in ORIGINALS]
        head = f'"""{self.module.__doc__}"""\n\n# Written by tests/test_faces.py.\n'
        names = f"__all__ = {self.module.__all__!r}"
        body = "\n\n".join([head, "\n".join(sorted(self.imports)), names, ALIASES, *classes])
        command = [sys.executable, "-m", "ruff"]
        for arguments in (["check", "--select", "I,F401", "--fix", "-q"], ["format", "-q"]):
            result = subprocess.run(
                [*command, *arguments, "--stdin-filename", str(path_of(self.world)), "-"],
                input=body, capture_output=True, text=True, timeout=60, check=True,
            )  # fmt: skip
            body = result.stdout
        return body

    def stub_of(self, name: str) -> str:
        face: type[Face] = getattr(self.module, name)
        written, mirrored = sources_of(face), sources_of(ORIGINALS[name])
        order = [*DUNDERS[self.world], *written, *mirrored]
        bodies = [f'    """{indented(face.__doc__ or "")}"""']
        for member in dict.fromkeys(order):
            if member not in vars(face) and member not in written:
                continue
            if member.startswith("_") and (
                member not in DUNDERS[self.world] or is_made_by_client(name, member)
            ):
                continue
            like_original = member in vars(face) or member in ("__init__", "__getitem__")
            is_mirrored = member in mirrored and like_original
            found = (mirrored if is_mirrored else written)[member]
            bodies += self.stubs_of(face, member, found)
        return f"class {name}:\n" + "\n\n".join(bodies)

    def stubs_of(self, face: type, member: str, found: list[tuple[Function, ModuleType]]) -> list[str]:
        overloads = [each for each in found if is_overload(each[0])] or found[-1:]
        # What a class docstring has said of its arguments is not said again.
        text = None if member.startswith("__") else inspect.getdoc(getattr(face, member))
        bodies = []
        for node, module in overloads:
            stub = self.translated(node, MADE_BY_CLIENT.get(face.__name__, ""))
            self.note_imports(stub, module)
            body = "..." if text is None else f'"""{indented(text, 8)}"""'
            stub.body = [ast.Expr(ast.Name("BODY"))]
            bodies.append(indented_by_4(ast.unparse(ast.fix_missing_locations(stub))).replace("BODY", body))
            text = None
        return bodies

    def translated(self, original: Function, item: str) -> Function:
        node: Any = copy.deepcopy(original)
        decorators = {ast.unparse(each).rpartition(".")[2] for each in node.decorator_list}
        node.decorator_list = [
            each
            for each in node.decorator_list
            if ast.unparse(each).rpartition(".")[2] in ("overload", "property")
        ]
        is_asyncio = self.world == "asyncio"
        if "asynccontextmanager" in decorators:
            node.returns.value.id = "AbstractAsyncContextManager" if is_asyncio else "AbstractContextManager"
        if not is_asyncio and node.returns is not None:
            for each in ast.walk(node.returns):
                if isinstance(each, ast.Name) and each.id == "AsyncIterator":
                    each.id = "Iterator"
        if node.name in ("__aiter__", "__iter__"):
            node.returns = ast.Name("Self")
        if node.name in ("__anext__", "__next__"):
            node.returns = ast.Name(item)
            if item == "Event":
                self.imports.add("from mcp_actors.client import Event")
        for each in ast.walk(node):
            if isinstance(each, ast.Name) and each.id in CALLBACKS:
                each.id = f"_{each.id}"
        if not is_asyncio or "asynccontextmanager" in decorators:
            node.__class__ = ast.FunctionDef
        return node

    def note_imports(self, node: Function, module: ModuleType) -> None:
        tree = ast.parse(inspect.getsource(module))
        node = copy.deepcopy(node)
        node.body = []
        known = {name.partition("[")[0] for line in self.imports for name in re.split(r"[\s,]+", line)}
        for each in ast.walk(node):
            if not isinstance(each, ast.Name):
                continue
            name = each.id
            if name in known or name in ORIGINALS or hasattr(builtins, name) or name.startswith("_"):
                continue
            self.imports.add(import_of(name, tree, module))


def import_of(name: str, tree: ast.Module, module: ModuleType) -> str:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any(
            (each.asname or each.name) == name for each in node.names
        ):
            return f"from {node.module} import {name}"
        if isinstance(node, ast.Import) and any((each.asname or each.name) == name for each in node.names):
            return f"import {name}"
    return f"from {module.__name__} import {name}"


def indented(text: str, columns: int = 4) -> str:
    """A docstring as it stands in a source: all lines but the first moved to the right, the end on its own line."""
    lines = text.strip().splitlines()
    moved = [line if not line or not number else " " * columns + line for number, line in enumerate(lines)]
    return "\n".join(moved) + ("\n" + " " * columns if len(lines) > 1 else "")


def indented_by_4(text: str) -> str:
    return "\n".join(" " * 4 + line for line in text.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_the_stubs_are_those_of_the_client(world: str) -> None:
    assert path_of(world).read_text() == Stub(world).text(), "run: python tests/test_faces.py"


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", sorted(ORIGINALS))
def test_a_class_has_the_members_of_its_original(world: str, name: str) -> None:
    face = getattr(importlib.import_module(f"mcp_actors.{world}"), name)
    wanted = {each for each in dir(ORIGINALS[name]) if not each.startswith("_")} - LEFT_OUT[name]
    if world == "sync":
        wanted = {RENAMED.get(each, each) for each in wanted}
    assert {each for each in dir(face) if not each.startswith("_")} >= wanted
    assert not {each for each in dir(face) if not each.startswith("_")} & LEFT_OUT[name]


@pytest.mark.parametrize("name", sorted(ORIGINALS))
def test_nothing_synchronous_speaks_of_awaiting(name: str) -> None:
    face = getattr(importlib.import_module("mcp_actors.sync"), name)
    texts = [face.__doc__, *(getattr(face, each).__doc__ for each in dir(face) if not each.startswith("_"))]
    assert not [text for text in texts if re.search(r"\bawait\b|async with|aclose|async iterator", text)]
    assert not any(inspect.iscoroutinefunction(getattr(face, each)) for each in dir(face) if each[0] != "_")


if __name__ == "__main__":
    for each in WORLDS:
        path_of(each).write_text(Stub(each).text())
