"""Writes the reference: a page for each public module, and one for the command line, before Sphinx reads the pages.

What is public is in the file that the tests freeze, with the version since which each name exists. A name that several
modules have is described in the most specific one; the others link to it.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError

from mcp_actors.cli.commands import command_names

ROOT = Path(__file__).parent.parent.parent
NAMES = ROOT / "tests" / "public_names.txt"
FOLDER = ROOT / "docs" / "api"
COMMAND_LINE = FOLDER / "command-line.md"
OURS = ("mcp_actors", "mcp_transports", "pytest_mcp_actors")


@dataclass(frozen=True)
class Name:
    """A public name: the module that has it, and the version since which it has."""

    module: str
    name: str
    since: str

    @property
    def value(self) -> Any:
        return getattr(importlib.import_module(self.module), self.name)

    @property
    def identity(self) -> tuple[str, int]:
        return self.name, id(self.value)


@dataclass(frozen=True)
class Module:
    """A public module, the version since which it is there, and its names in the order of the file."""

    name: str
    since: str
    names: list[Name]


@cache
def public_modules() -> list[Module]:
    """The modules of the file. A line with a second version is of something that has gone."""
    found: list[Module] = []
    for line in NAMES.read_text().splitlines():
        name, since, *gone = line.split()
        if gone:
            continue
        if line.startswith(" "):
            found[-1].names.append(Name(found[-1].name, name, since))
        else:
            found.append(Module(name, since, []))
    return found


def described_in() -> dict[tuple[str, int], str]:
    """The module whose page describes an object: of those that have it, the one with the longest name."""
    places: dict[tuple[str, int], str] = {}
    for module in public_modules():
        for each in module.names:
            before = places.get(each.identity, "")
            places[each.identity] = max(before, module.name, key=len)
    return places


# -- values and aliases, which keep no docstring: it is below their definition -------------------------


@cache
def assignments(module: ModuleType) -> dict[str, tuple[str, str]]:
    """What a module assigns to each name, as its source says it, and the docstring below."""
    try:
        body = ast.parse(inspect.getsource(module)).body
    except (OSError, TypeError):
        return {}
    found: dict[str, tuple[str, str]] = {}
    for at, node in enumerate(body):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                pass
            case _:
                continue
        text = ""
        match body[at + 1 : at + 2]:
            case [ast.Expr(value=ast.Constant(value=str(text)))]:
                text = inspect.cleandoc(text)
        found[name] = ast.unparse(value), text
    return found


def definition(name: Name) -> tuple[str, str]:
    """The expression that defines a value or an alias, and its docstring.

    Raises:
        ExtensionError: no module of this project defines it.
    """
    for module in list(sys.modules.values()):
        if module.__name__.partition(".")[0] in OURS and vars(module).get(name.name) is name.value:
            found = assignments(module).get(name.name)
            if found:
                return found
    raise ExtensionError(f"{name.module}.{name.name}: no module defines it")


# -- pages ---------------------------------------------------------------------------------------------


def entry(name: Name) -> Iterator[str]:
    """The description of one name, in the language of docutils."""
    value = name.value
    if inspect.isclass(value):
        yield f".. autoclass:: {name.module}.{name.name}"
        yield "   :members:"
        yield "   :show-inheritance:"
    elif inspect.isroutine(value):
        yield f".. autofunction:: {name.module}.{name.name}"
    else:
        expression, text = definition(name)
        yield f".. py:data:: {name.module}.{name.name}"
        if len(expression) <= 200:
            yield f"   :value: {expression}"
        yield ""
        yield from (f"   {line}" for line in text.splitlines())
    yield ""
    yield f"   *Since {name.since}.*"
    yield ""


def page_of(module: Module) -> str:
    """The page of a module, in Markdown."""
    places = described_in()
    here = [
        each
        for each in module.names
        if places[each.identity] == module.name and not inspect.ismodule(each.value)
    ]
    elsewhere = [each for each in module.names if places[each.identity] != module.name]
    lines = [f"# {module.name}", "", "```{eval-rst}", f".. automodule:: {module.name}", "   :no-members:", ""]
    lines += [f"*Since {module.since}.*", ""]
    for each in here:
        lines += entry(each)
    if elsewhere:
        lines += ["It also has these names, which are described where they are defined:", ""]
        lines += [
            f"- :py:obj:`{each.name} <{places[each.identity]}.{each.name}>`, since {each.since}"
            for each in elsewhere
        ]
        lines += [""]
    return "\n".join([*lines, "```", ""])


def commands() -> str:
    """The page of the command line: what each command prints for ``--help``."""
    lines = [
        "# The command line",
        "",
        "This page is what `mcp-actors --help` and `mcp-actors COMMAND --help` print.",
        "",
    ]
    for words in ([], *([name] for name in command_names())):
        title = " ".join(["mcp-actors", *words])
        done = subprocess.run(
            [sys.executable, "-m", "mcp_actors", *words, "--help"],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        lines += [f"## {title}", "", "```text", done.stdout.rstrip(), "```", ""]
    return "\n".join(lines)


def write(path: Path, text: str) -> None:
    """Writes a page if it differs, so that Sphinx reads again only what has changed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def write_pages(app: Sphinx) -> None:
    for module in public_modules():
        write(FOLDER / f"{module.name}.md", page_of(module))
    listed = "\n".join(module.name for module in public_modules())
    title = "# Python\n\nEvery public name, by the module that has it.\n"
    index = f"{title}\n```{{toctree}}\n:maxdepth: 1\n\n{listed}\n```\n"
    write(FOLDER / "index.md", index)
    write(COMMAND_LINE, commands())


# -- what is missing -----------------------------------------------------------------------------------


def undocumented() -> list[str]:
    """The public names, and the public methods and properties of public classes, that have no docstring."""
    missing = []
    for module in public_modules():
        for each in module.names:
            value = each.value
            if inspect.ismodule(value):
                continue
            full = f"{each.module}.{each.name}"
            if inspect.isclass(value) or inspect.isroutine(value):
                if not inspect.getdoc(value):
                    missing.append(full)
            elif not definition(each)[1]:
                missing.append(full)
            if inspect.isclass(value) and value.__module__.partition(".")[0] in OURS:
                missing += [
                    f"{full}.{method}"
                    for method, member in vars(value).items()
                    if not method.startswith("_")
                    and (
                        inspect.isroutine(member) or isinstance(member, property | classmethod | staticmethod)
                    )
                    and not inspect.getdoc(getattr(value, method))
                ]
    return sorted(set(missing))


def refuse_undocumented(app: Sphinx, env: BuildEnvironment) -> None:
    missing = undocumented()
    if missing:
        raise ExtensionError(f"{len(missing)} public names have no docstring: {', '.join(missing)}")


# -- names in docstrings -------------------------------------------------------------------------------


def resolve(app: Sphinx, env: BuildEnvironment, node: Any, content: nodes.TextElement) -> nodes.Node | None:
    """Links a name in a docstring to the one public object that ends with it; any other text stays as it is."""
    if node.get("refdomain") != "py":
        return None
    domain = env.domains.python_domain
    wanted = node["reftarget"]
    ends = [full for full in domain.objects if full == wanted or full.endswith(f".{wanted}")]
    shortest = [full for full in ends if full.count(".") == min(each.count(".") for each in ends)]
    if len(shortest) != 1:
        return None
    found = domain.objects[shortest[0]]
    uri = app.builder.get_relative_uri(node["refdoc"], found.docname)
    return nodes.reference("", "", content, internal=True, refuri=f"{uri}#{found.node_id}")


def look_up_exactly(app: Sphinx, tree: nodes.document) -> None:
    """Has Sphinx look up names as they are written, so that a type such as bytes is not an attribute of that name."""
    for node in tree.findall(pending_xref):
        if node.get("refdomain") == "py":
            node.attributes.pop("refspecific", None)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write_pages)
    app.connect("env-check-consistency", refuse_undocumented)
    app.connect("doctree-read", look_up_exactly)
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
