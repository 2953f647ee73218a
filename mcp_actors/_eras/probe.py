"""Finds the era that a server speaks, by its answer to a client's ``server/discover``.

MCP 2026-07-28, Versioning and Discovery, Backward Compatibility. The client sends ``server/discover`` first:

==============================================================  ==================================================
outcome                                                         verdict
==============================================================  ==================================================
a result with a non-empty ``supportedVersions``                 the newest common version; a legacy one means
                                                                ``initialize``
-32022 with ``data.supported``                                  the newest common version of that list
either of these without a common version                        modern, and out of reach: never ``initialize``
-32020, -32021                                                  modern, with the version that was tried
any other error, another kind of result, or silence             legacy: real servers answer in every way there is
==============================================================  ==================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mcp_actors._eras.era import Era
from mcp_actors._eras.legacy.eras import LEGACY
from mcp_actors._eras.modern.eras import MODERN
from mcp_actors.errors import HeaderMismatch, MissingCapability, RpcError, UnsupportedVersion

__all__ = ["newest_common", "verdict_on_error", "verdict_on_result", "versions_for"]


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


def verdict_on_result(result: dict[str, Any], ours: Sequence[str]) -> Era | None:
    """Returns the era to speak after a result; ``None`` means that this was no answer of a modern server.

    Raises `UnsupportedVersion` when it was one but no version is common.
    """
    supported = result.get("supportedVersions")
    if not isinstance(supported, list) or not supported:
        return None
    return _era(newest_common(ours, supported), ours, supported)


def verdict_on_error(error: RpcError, ours: Sequence[str], tried: Era) -> Era | None:
    """Returns the era to speak after an error; ``None`` means that the server is no modern one.

    Raises `UnsupportedVersion` as `verdict_on_result` does.
    """
    if isinstance(error, UnsupportedVersion) and error.supported:
        return _era(newest_common(ours, error.supported), ours, error.supported)
    return tried if isinstance(error, HeaderMismatch | MissingCapability) else None


def _era(version: str | None, ours: Sequence[str], theirs: list[Any]) -> Era:
    if version is None:
        raise UnsupportedVersion(ours[-1], [v for v in theirs if isinstance(v, str)])
    return LEGACY[version] if version in LEGACY else MODERN[version]
