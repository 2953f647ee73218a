"""The public surface, frozen: a name that comes or goes must be changed in ``public_names.txt`` too, on purpose.

``python tests/test_public_names.py`` writes the present names there, each with the version that it came with; a name
that has gone keeps its line and gets the version that it went with. Look at what it changed before you commit that.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

import mcp_actors
import mcp_transports
from mcp_actors.client import VERSION

FILE = Path(__file__).with_name("public_names.txt")
CHANGELOG = Path(__file__).parent.parent / "CHANGELOG.md"


def release(version: str) -> str:
    """The version that a candidate is one for: ``1.0.0`` of ``1.0.0rc1``."""
    found = re.match(r"\d+\.\d+\.\d+", version)
    assert found is not None
    return found[0]


@dataclass(frozen=True)
class Life:
    """The version that a name came with, and the one that it went with or an empty string."""

    since: str
    gone: str = ""


def recorded() -> dict[tuple[str, str], Life]:
    """Every line of the file: a module (its name is empty), and the names of it, which are indented below."""
    lives = {}
    module = ""
    for line in FILE.read_text().splitlines():
        first, *versions = line.split()
        module, name = (module, first) if line.startswith(" ") else (first, "")
        lives[module, name] = Life(*versions)
    return lives


LIVES = recorded()
PUBLIC: dict[str, list[str]] = {}
for (_module, _name), _life in LIVES.items():
    if not _life.gone:
        PUBLIC.setdefault(_module, []).extend([_name] if _name else [])

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


def missing_in(changelog: str, lives: dict[tuple[str, str], Life], version: str) -> list[str]:
    """The names that came or went with a version and that no line of its section has, beside their module."""
    section = changelog.partition(f"\n## {version} ")[2].partition("\n## ")[0]
    told = [set(re.findall(r"`([\w.]+)`", line)) for line in section.splitlines()]
    changed = [key for key, life in lives.items() if release(version) in (life.since, life.gone)]
    return [" ".join(key) for key in changed if not any({*key} - {""} <= line for line in told)]


def test_the_changelog_has_every_name_that_came_or_went() -> None:
    assert missing_in(CHANGELOG.read_text(), LIVES, VERSION) == []


def test_a_name_that_the_changelog_does_not_have_is_found() -> None:
    lives = {
        ("mcp_actors", ""): Life("0.1.0"),
        ("mcp_actors", "Came"): Life("2.0.0"),
        ("mcp_actors", "Went"): Life("0.1.0", "2.0.0"),
        ("mcp_actors", "Stayed"): Life("0.1.0"),
    }
    row, earlier = "| `mcp_actors` | `Came` |\n`Went`", "\n## 1.0.0 (then)\n`mcp_actors` `Went`\n"
    assert missing_in(f"\n## 2.0.0rc1 (now)\n{row}\n{earlier}", lives, "2.0.0rc1") == ["mcp_actors Went"]
    row = "| `mcp_actors` | `Came`, `Went` |"
    assert missing_in(f"\n## 2.0.0rc1 (now)\n{row}\n{earlier}", lives, "2.0.0rc1") == []


def test_a_name_keeps_the_version_that_it_came_with() -> None:
    before = {("a", ""): Life("0.1.0"), ("a", "Old"): Life("0.1.0"), ("a", "Lost"): Life("0.1.0", "0.2.0")}
    assert lives_after(before, {"a": ["Lost", "New"], "b": []}, "1.0.0") == {
        ("a", ""): Life("0.1.0"),
        ("a", "Lost"): Life("1.0.0"),
        ("a", "New"): Life("1.0.0"),
        ("a", "Old"): Life("0.1.0", "1.0.0"),
        ("b", ""): Life("1.0.0"),
    }


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


def lives_after(
    before: dict[tuple[str, str], Life], names: dict[str, list[str]], version: str
) -> dict[tuple[str, str], Life]:
    """The lines of the file for the names that are there now, and for those that were before, in order."""
    now = {(module, name) for module, each in names.items() for name in ("", *each)}
    lives = {}
    for key in sorted({*before, *now}):
        life = before.get(key, Life(version))
        if key not in now:
            lives[key] = Life(life.since, life.gone or version)
        else:
            lives[key] = Life(version) if life.gone else life
    return lives


def freeze() -> None:
    lives = lives_after(LIVES, present(), release(VERSION))
    lines = [
        f"{f'    {name}' if name else module} {life.since} {life.gone}".rstrip()
        for (module, name), life in lives.items()
    ]
    FILE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    freeze()
