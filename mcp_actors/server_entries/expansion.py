"""Puts variables into the texts of an entry when they are needed.

``${VAR}``, ``${VAR:-default}`` and ``${env:VAR}`` are those of the environment, ``${input:ID}`` is one, too, and Visual
Studio Code and Cursor have names for some places. No value of a variable is shown anywhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

import attrs

from mcp_actors.errors import ConfigurationError, MissingVariable

__all__ = ["ConfigSource", "Expansion", "input_variable"]

_EXPRESSION = re.compile(r"\$\{([^{}]*)\}|\$\{")
# Windows has names such as ProgramFiles(x86).
_VARIABLE = re.compile(r"(?:env:)?([A-Za-z_][\w().]*)(?::-(.*))?", re.DOTALL)
_INPUT = re.compile(r"input:([\w.-]+)")
_KNOWN = "known are ${VAR}, ${VAR:-default}, ${env:VAR}, ${input:ID}, ${userHome} and ${workspaceFolder}"


@attrs.frozen
class ConfigSource:
    """The origin of a configuration."""

    name: str
    """The file, or words for something else, for errors."""
    folder: Path | None = None
    """The folder that relative paths begin at: that of the file, or of the project whose settings it has."""
    inputs: Mapping[str, str | None] = attrs.field(factory=dict, repr=False)
    """The inputs that the file declares, with their defaults."""


def input_variable(name: str) -> str:
    """Returns the environment variable that has the value of an input: ``INPUT_API_KEY`` for ``api-key``."""
    return "INPUT_" + re.sub(r"\W", "_", name).upper()


@attrs.frozen(repr=False)
class Expansion:
    """Expands the texts of one entry."""

    source: ConfigSource
    server: str
    environ: Mapping[str, str]

    def of(self, text: str, member: str) -> str:
        """Returns a text with the values of its variables.

        Args:
            text: What the configuration has.
            member: Where it has it, for errors.

        Raises:
            MissingVariable: A variable is not set.
            ConfigurationError: There is something else between ``${`` and ``}``.
        """
        return _EXPRESSION.sub(lambda found: self._value(found[1], member), text)

    def path(self, text: str, member: str) -> str:
        """Returns a path: ``~`` is the folder of the user, and a relative one begins at the configuration's folder.

        Raises:
            ConfigurationError: As `of`.
        """
        path = os.path.expanduser(self.of(text, member))
        return path if self.source.folder is None else str(self.source.folder / path)

    def fail(self, problem: str, member: str) -> NoReturn:
        """Raises `ConfigurationError` for a member of the entry."""
        raise ConfigurationError(problem, file=self.source.name, server=self.server, member=member)

    def _value(self, expression: str | None, member: str) -> str:
        if expression is None:
            self.fail("a ${ has no }, or stands inside of another one", member)
        if expression in _PLACES:
            folder = self.source.folder
            if folder is None and expression.startswith("workspace"):
                self.fail(f"${{{expression}}} is known only in a file", member)
            return _PLACES[expression](folder or Path())
        if found := _INPUT.fullmatch(expression):
            return self._input(found[1], member)
        if not (found := _VARIABLE.fullmatch(expression)):
            # What follows the first word may be a secret.
            word = re.match(r"[\w:.-]{0,32}", expression.partition(":-")[0])
            self.fail(f"'${{{word[0] if word else ''}' cannot be expanded; {_KNOWN}", member)
        name, default = found.groups()
        value = self.environ.get(name, default)
        if value is None:
            self._missing(
                name,
                f"the environment variable {name} is not set; set it, or write ${{{name}:-default}}",
                member,
            )
        return value

    def _input(self, name: str, member: str) -> str:
        variable = input_variable(name)
        value = self.environ.get(variable, self.source.inputs.get(name))
        if value is None:
            self._missing(
                variable,
                f"nobody is asked for the input {name!r}; set the environment variable {variable}",
                member,
            )
        return value

    def _missing(self, variable: str, problem: str, member: str) -> NoReturn:
        raise MissingVariable(variable, problem, file=self.source.name, server=self.server, member=member)


_PLACES: Mapping[str, Callable[[Path], str]] = {
    "userHome": lambda _folder: os.path.expanduser("~"),
    "workspaceFolder": str,
    "workspaceFolderBasename": lambda folder: folder.name,
    "pathSeparator": lambda _folder: os.sep,
    "/": lambda _folder: os.sep,
}
"""The predefined variables of Visual Studio Code and Cursor, by the folder of the project."""
