"""The arguments of calls, checked or repaired by the schemas that the server has listed, before they are sent.

For programs whose arguments come from a model: a refusal costs no request, and a number that the model wrote as text is
sent as a number. What a server does with arguments is its own matter all the same, so by default they go as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Literal, NamedTuple

from mcp_actors._schema.repair import Repair, Repaired
from mcp_actors._schema.validate import CompiledSchemas, Validator, compile_schema
from mcp_actors.errors import WrongArguments
from mcp_actors.supervision.logging import log
from mcp_actors.types import Tool

__all__ = ["ArgumentCheck", "ArgumentMode", "CompiledArguments", "ToolSchemas"]

ArgumentMode = Literal["as-is", "check", "repair"]
"""What becomes of the arguments of a call before they are sent."""

# Bytes for which a schema counts that cannot be used: it may be over every bound.
_USELESS = 1 << 20


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


class ToolSchemas:
    """The input schemas of listed tools that were used last, ready for use."""

    def __init__(self) -> None:
        self._compiled = CompiledSchemas[CompiledArguments | None]()

    def __repr__(self) -> str:
        return f"<ToolSchemas {self._compiled!r}>"

    def of(self, name: str, schema: dict[str, Any]) -> CompiledArguments | None:
        """Returns the schema of a tool ready for use; ``None`` for one that is no use, which is logged."""
        return self._compiled.of(schema, partial(_compiled, name, schema))

    def clear(self) -> None:
        """Drops everything."""
        self._compiled.clear()


def _compiled(name: str, schema: dict[str, Any]) -> tuple[CompiledArguments | None, int]:
    try:
        validator = compile_schema(schema)
    except ValueError as error:
        log.debug(
            "the arguments of a tool are not checked: its schema is no use", tool=name, error=str(error)
        )
        return None, _USELESS
    return CompiledArguments(validator, Repair(schema)), validator.weight


class ArgumentCheck:
    """Input schemas by tool name; each is compiled when its tool is first called.

    Args:
        mode: What is done.
    """

    def __init__(self, mode: ArgumentMode) -> None:
        self._mode = mode
        self._schemas: dict[str, dict[str, Any]] = {}
        self._compiled = ToolSchemas()

    def __repr__(self) -> str:
        return f"<ArgumentCheck {self._mode} {len(self._schemas)}>"

    def learn(self, tools: Iterable[Tool]) -> None:
        """Takes note of listed tools."""
        if self._mode != "as-is":
            self._schemas.update((tool.name, tool.input_schema) for tool in tools)

    def forget(self) -> None:
        """Forgets all schemas: the tools have changed, and have to be listed again."""
        self._schemas.clear()
        self._compiled.clear()

    def to_send(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Returns the arguments that are sent in place of these. Those of a tool that was not listed are not looked at.

        Raises:
            WrongArguments: They do not fit, and cannot be repaired.
        """
        listed = self._schemas.get(name)
        schema = None if listed is None else self._compiled.of(name, listed)
        if schema is None or not (problems := schema.validator.problems(arguments)):
            return arguments
        if self._mode == "repair" and (repaired := schema.repair(arguments)) is not None:
            arguments = repaired.arguments
            problems = schema.validator.problems(arguments)
        if problems:
            raise WrongArguments(name, [str(each) for each in problems])
        return arguments
