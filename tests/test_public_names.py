"""The public surface, frozen: a name that comes or goes must be changed in ``public_names.txt`` too, on purpose.

``python tests/test_public_names.py`` writes the present names there; look at what it changed before you commit that.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import mcp_actors
import mcp_transports

FILE = Path(__file__).with_name("public_names.txt")


def frozen() -> dict[str, list[str]]:
    """The names of each public module: a module on a line, and its names indented below it."""
    names: dict[str, list[str]] = {}
    module = ""
    for line in FILE.read_text().splitlines():
        if line.startswith(" "):
            names[module].append(line.strip())
        else:
            module = line
            names[module] = []
    return names


PUBLIC = frozen()

# Reached as programs or through the command line, not as libraries.
PROGRAMS = {"mcp_actors.__main__", "mcp_actors.cli", "mcp_actors.examples"}
# Documented modules that lie deeper.
DEEPER = [
    "mcp_actors.abc.discovery",
    "mcp_actors.abc.framing",
    "mcp_actors.cli.inspect",
    "mcp_actors.gateway.client_group",
    "mcp_actors.gateway.server_entries",
    "mcp_actors.telemetry.cluster",
    "mcp_actors.telemetry.live_view",
    "mcp_actors.telemetry.snapshot",
    "mcp_actors.testing.simulate",
]


def public_modules() -> list[str]:
    """The modules one step below the two packages, and those deeper ones that pages name."""
    found = [*DEEPER]
    for package in (mcp_actors, mcp_transports):
        found.append(package.__name__)
        found += [
            f"{package.__name__}.{module.name}"
            for module in pkgutil.iter_modules(package.__path__)
            if not module.name.startswith("_") and f"{package.__name__}.{module.name}" not in PROGRAMS
        ]
    return sorted(found)


def exported(name: str) -> list[str]:
    return list(getattr(importlib.import_module(name), "__all__", ()))


def present() -> dict[str, list[str]]:
    return {name: sorted(exported(name)) for name in public_modules()}


def test_the_public_modules_are_those_that_are_frozen() -> None:
    assert public_modules() == sorted(PUBLIC)


@pytest.mark.parametrize("module", sorted(PUBLIC))
def test_the_public_names_are_those_that_are_frozen(module: str) -> None:
    assert sorted(exported(module)) == PUBLIC[module]


@pytest.mark.parametrize("module", sorted(PUBLIC))
def test_every_public_name_exists_once_and_is_documented(module: str) -> None:
    namespace = importlib.import_module(module)
    names = exported(module)
    assert len(set(names)) == len(names)
    assert undocumented(namespace, names) == []


def undocumented(namespace: ModuleType, names: list[str]) -> list[str]:
    """Modules, classes and functions without a docstring of their own, and their public methods without one."""
    missing = [] if namespace.__doc__ else [namespace.__name__]
    for name in names:
        value = getattr(namespace, name)
        if not (inspect.ismodule(value) or inspect.isclass(value) or inspect.isroutine(value)):
            continue
        if not (vars(value) if inspect.isclass(value) else {"__doc__": value.__doc__}).get("__doc__"):
            missing.append(name)
        if inspect.isclass(value) and value.__module__.startswith(("mcp_actors", "mcp_transports")):
            missing += [
                f"{name}.{member}"
                for member, each in vars(value).items()
                if not member.startswith("_")
                if inspect.isroutine(each) or isinstance(each, property)
                if not inspect.getdoc(getattr(value, member))
            ]
    return missing


def test_a_missing_docstring_is_found() -> None:
    namespace = ModuleType("mcp_actors.made_up", "A module.")

    class Silent:
        def speak(self) -> None: ...

    Silent.__module__ = "mcp_actors.made_up"
    namespace.Silent = Silent  # type: ignore[attr-defined]
    assert undocumented(namespace, ["Silent"]) == ["Silent", "Silent.speak"]


def test_a_star_import_brings_the_public_names() -> None:
    program = "import sys; before = set(dir()); from mcp_actors import *; print(len(set(dir()) - before) - 1)"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert int(result.stdout) == len(PUBLIC["mcp_actors"])


def freeze() -> None:
    lines = [
        line for module, names in present().items() for line in (module, *(f"    {name}" for name in names))
    ]
    FILE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    freeze()
