"""Log messages that a server sends to its client."""

from __future__ import annotations

from typing import Any, Literal, get_args

import attrs

from mcp_actors.types.vocabulary import Vocabulary

__all__ = ["LOGGING_LEVELS", "LoggingLevel", "LoggingMessageParams", "SetLevelParams"]

LoggingLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]

LOGGING_LEVELS: tuple[LoggingLevel, ...] = get_args(LoggingLevel)
"""The levels of RFC 5424 section 6.2.1, the least severe first."""


@attrs.define(eq=False, repr=False)
class SetLevelParams(Vocabulary):
    """Params of ``logging/setLevel``: the least severe level that is sent in this session (revisions with sessions)."""

    level: LoggingLevel
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)


@attrs.define(eq=False, repr=False)
class LoggingMessageParams(Vocabulary):
    """Params of ``notifications/message``; ``data`` is any JSON value, including null."""

    level: LoggingLevel
    data: Any
    logger: str | None = None
    meta: dict[str, Any] | None = attrs.field(default=None, kw_only=True)
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)
