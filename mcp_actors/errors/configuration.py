"""Configurations of servers that cannot be used."""

from __future__ import annotations

from mcp_actors.errors.protocol import McpError

__all__ = ["ConfigurationError", "MissingVariable"]

# Characters of a name from a configuration that a message shows.
SHOWN = 80


class ConfigurationError(McpError):
    """A configuration of servers cannot be used, or the target of an upstream. No secret of a configuration is shown.

    Args:
        problem: A clause that says what is wrong, and what to write.
        file: The file, or words for where the configuration came from.
        server: The name of the entry, if it is about one.
        member: The member of the entry, such as ``env.API_KEY``.
    """

    def __init__(
        self, problem: str, *, file: str, server: str | None = None, member: str | None = None
    ) -> None:
        where = [file]
        if server is not None:
            where.append(f"server {server[:SHOWN]!r}")
        if member is not None:
            where.append(member[:SHOWN])
        super().__init__(f"{', '.join(where)}: {problem}")
        self.file = file
        self.server = server
        self.member = member


class MissingVariable(ConfigurationError):
    """An entry names an environment variable that is not set, and has no default for it.

    Args:
        variable: The name of the variable.
        problem: A clause that says what is missing.
        file: The file, or words for where the configuration came from.
        server: The name of the entry.
        member: The member that names the variable.
    """

    def __init__(self, variable: str, problem: str, *, file: str, server: str, member: str) -> None:
        super().__init__(problem, file=file, server=server, member=member)
        self.variable = variable
