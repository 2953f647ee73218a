"""Reads what a server answers to a client's ``server/discover`` or ``initialize``; `decisions` says what follows.

MCP 2026-07-28, Versioning and Discovery, Backward Compatibility.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mcp_actors._eras.decisions import Answer
from mcp_actors._eras.era import Era
from mcp_actors._eras.legacy.eras import LEGACY
from mcp_actors._eras.modern.eras import MODERN
from mcp_actors.errors import (
    ConnectionLost,
    HeaderMismatch,
    McpError,
    MissingCapability,
    RemoteProtocolError,
    RpcError,
    Unavailable,
    UnsupportedVersion,
)
from mcp_actors.types import DiscoverResult

__all__ = ["Outcome", "discoverable", "newest_common", "read_discovery", "read_initialize", "versions_for"]

Outcome = Mapping[str, Any] | McpError
"""The result of a request, or the reason why it has none."""


def versions_for(choice: str) -> tuple[str, ...]:
    """Returns the versions that ``"auto"``, ``"legacy"``, ``"modern"`` or one version stand for, oldest first.

    Raises `ValueError` for anything else.
    """
    by_name = {"auto": (*LEGACY, *MODERN), "legacy": tuple(LEGACY), "modern": tuple(MODERN)}
    if choice in by_name:
        return by_name[choice]
    if choice in LEGACY or choice in MODERN:
        return (choice,)
    raise ValueError(
        f"era must be 'auto', 'legacy', 'modern' or one of {', '.join((*LEGACY, *MODERN))}: {choice!r}"
    )


def newest_common(ours: Sequence[str], theirs: Any) -> str | None:
    """Returns the newest version that both sides speak, or ``None``; ``theirs`` may be any JSON value."""
    if not isinstance(theirs, list | tuple):
        return None
    return next((version for version in reversed(ours) if version in theirs), None)


def discoverable(ours: Sequence[str], prior: DiscoverResult) -> str:
    """Returns the newest version without sessions that an earlier answer to ``server/discover`` and ``ours`` share.

    Raises:
        ValueError: There is none.
    """
    version = newest_common([version for version in ours if version in MODERN], prior.supported_versions)
    if version is None:
        theirs = ", ".join(prior.supported_versions) or "nothing"
        raise ValueError(f"prior_discover names no version of this client without sessions: {theirs}")
    return version


def read_discovery(outcome: Outcome, ours: Sequence[str]) -> tuple[Answer, Era | None]:
    """Returns what an answer to ``server/discover`` is, and the era that it names, if it names one of ``ours``."""
    if isinstance(outcome, HeaderMismatch | MissingCapability):
        return Answer.STATELESS_ERROR, None
    if isinstance(outcome, UnsupportedVersion) and outcome.supported:
        return _named(outcome.supported, ours, Answer.NAMES_STATELESS)
    if isinstance(outcome, McpError):
        return _failed(outcome), None
    supported = outcome.get("supportedVersions")
    if not isinstance(supported, list) or not supported:
        return Answer.REFUSED, None
    return _named(supported, ours, Answer.AGREED)


def read_initialize(outcome: Outcome, ours: Sequence[str]) -> tuple[Answer, Era | None]:
    """Returns what an answer to ``initialize`` is, and the era that it names, if it names one of ``ours``."""
    if isinstance(outcome, McpError):
        theirs = _supported(outcome)
        named = newest_common([version for version in ours if version in MODERN], theirs)
        if named is not None:
            return Answer.NAMES_STATELESS, MODERN[named]
        return (Answer.NAMES_OTHERS if theirs else _failed(outcome)), None
    version = outcome.get("protocolVersion")
    if isinstance(version, str) and version in ours and version in LEGACY:
        return Answer.AGREED, LEGACY[version]
    return Answer.NAMES_OTHERS, None


def _named(theirs: list[Any], ours: Sequence[str], stateless: Answer) -> tuple[Answer, Era | None]:
    version = newest_common(ours, theirs)
    if version is None:
        return Answer.NAMES_OTHERS, None
    return (Answer.NAMES_SESSIONS, LEGACY[version]) if version in LEGACY else (stateless, MODERN[version])


def _supported(error: McpError) -> list[Any]:
    """Returns the versions that an error names, whatever its code: servers refuse ``initialize`` with several."""
    data = error.data if isinstance(error, RpcError) else None
    listed = data.get("supported") if isinstance(data, dict) else None
    return listed if isinstance(listed, list) else []


def _failed(error: McpError) -> Answer:
    if isinstance(error, Unavailable | ConnectionLost):
        return Answer.UNAVAILABLE
    return Answer.REFUSED if isinstance(error, RpcError | RemoteProtocolError) else Answer.UNREACHABLE
