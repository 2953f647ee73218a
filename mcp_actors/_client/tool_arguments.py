"""The arguments of calls, checked or repaired by the schemas that the server has listed, before they are sent.

For programs whose arguments come from a model: a refusal costs no request, and a number that the model wrote as text is
sent as a number. What a server does with arguments is its own matter all the same, so by default they go as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from mcp_actors._schema.repair import Repair, Repaired
from mcp_actors._schema.validate import Validator, compile_schema
from mcp_actors.errors import WrongArguments
from mcp_actors.supervision.logging import log
from mcp_actors.types import Tool

__all__ = ["ArgumentCheck", "ArgumentMode", "CompiledArguments", "compiled_arguments"]

ArgumentMode = Literal["as-is", "check", "repair"]
"""What becomes of the arguments of a call before they are sent."""


class CompiledArguments(NamedTuple):
    """The input schema of a listed tool, ready for use."""

    validator: Validator
    repair: Repair

    def repaired(self, arguments: dict[str, Any]) -> Repaired | None:
        """Returns arguments that fit in place of those that do not, ``None`` where these fit or nothing is meant."""
        if self.validator.is_valid(arguments):
            return None
        found = self.repair(arguments)
        return found if found is not None and self.validator.is_valid(found.arguments) else None


class ArgumentCheck:
    """Input schemas by tool name; each is compiled when its tool is first called.

    Args:
        mode: What is done.
    """

    def __init__(self, mode: ArgumentMode) -> None:
        self._mode = mode
        self._schemas: dict[str, dict[str, Any] | CompiledArguments | None] = {}

    def __repr__(self) -> str:
        return f"<ArgumentCheck {self._mode} {len(self._schemas)}>"

    def learn(self, tools: Iterable[Tool]) -> None:
        """Takes note of listed tools."""
        if self._mode != "as-is":
            self._schemas.update((tool.name, tool.input_schema) for tool in tools)

    def forget(self) -> None:
        """Forgets all schemas: the tools have changed, and have to be listed again."""
        self._schemas.clear()

    def to_send(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Returns the arguments that are sent in place of these. Those of a tool that was not listed are not looked at.

        Raises:
            WrongArguments: They do not fit, and cannot be repaired.
        """
        schema = self._schemas.get(name)
        if isinstance(schema, dict):
            schema = self._schemas[name] = compiled_arguments(name, schema)
        if schema is None or not (problems := schema.validator.problems(arguments)):
            return arguments
        if self._mode == "repair" and (repaired := schema.repair(arguments)) is not None:
            arguments = repaired.arguments
            problems = schema.validator.problems(arguments)
        if problems:
            raise WrongArguments(name, [str(each) for each in problems])
        return arguments


def compiled_arguments(name: str, schema: dict[str, Any]) -> CompiledArguments | None:
    """Compiles the input schema of a tool; ``None`` for one that is no use, which is logged."""
    try:
        return CompiledArguments(compile_schema(schema), Repair(schema))
    except ValueError as error:
        log.debug(
            "the arguments of a tool are not checked: its schema is no use", tool=name, error=str(error)
        )
        return None
