"""Log messages from a server to its client."""

from __future__ import annotations

from typing import Any, Literal, get_args

import attrs

__all__ = ["LOGGING_LEVELS", "LoggingLevel", "LoggingMessageParams", "SetLevelParams"]

LoggingLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]

LOGGING_LEVELS: tuple[LoggingLevel, ...] = get_args(LoggingLevel)
"""The levels of RFC 5424, the least severe first."""


@attrs.define
class SetLevelParams:
    """Sets the least severe level that a session wants (revisions with sessions)."""

    level: LoggingLevel
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define
class LoggingMessageParams:
    """One log message; ``data`` is any JSON value, null included."""

    level: LoggingLevel
    data: Any
    logger: str | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)
