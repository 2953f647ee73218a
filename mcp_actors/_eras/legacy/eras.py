"""The revisions with sessions as values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from mcp_actors._eras.convert import make_converter
from mcp_actors._eras.era import RESULT_STAMPS, Era, Invocation, Method
from mcp_actors._eras.legacy.client_rules import CLIENT_RULES
from mcp_actors._eras.legacy.methods import (
    client_methods,
    client_notifications,
    server_methods,
    server_notifications,
)
from mcp_actors._eras.legacy.revisions import REVISIONS, absent_in, downgraded_in
from mcp_actors.errors import INTERNAL_ERROR, INVALID_PARAMS, URL_ELICITATION_REQUIRED, MissingCapability

__all__ = ["DEFAULT_LOG_LEVEL", "LATEST_LEGACY", "LEGACY"]

DEFAULT_LOG_LEVEL = "info"


def _make_seal(unstructure: Callable[[Any], Any], *, structured: bool) -> Callable[..., dict[str, Any]]:
    def seal(result: Any, method: Method, stamp: Mapping[str, Any]) -> dict[str, Any]:
        """The result as this revision has it. Takes an object, a plain dict (left as it is) or ``None`` for ``{}``."""
        if result is None:
            return {}
        body: dict[str, Any] = result.copy() if result.__class__ is dict else unstructure(result)
        # Peers with sessions compare empty results with exactly {}.
        for name in RESULT_STAMPS:
            body.pop(name, None)
        # An object of the vocabulary is right already; a plain dict may come from anywhere.
        if method.name == "tools/call" and not (
            structured and isinstance(body.get("structuredContent"), dict)
        ):
            body.pop("structuredContent", None)
        return body

    return seal


def _wanted_log_level(invocation: Invocation) -> str | None:
    """The session remembers it; before the first ``logging/setLevel`` the choice is the server's (MCP, Logging)."""
    return invocation.peer.log_level or DEFAULT_LOG_LEVEL


def _error_codes(revision: str) -> dict[int, int]:
    """Missing capabilities have no code of their own in sessions, and visits to URLs have one in one revision only."""
    codes = {MissingCapability.CODE: INVALID_PARAMS}
    return codes if revision >= "2025-11-25" else {**codes, URL_ELICITATION_REQUIRED: INTERNAL_ERROR}


def _make_era(revision: str) -> Era:
    converter = make_converter(absent_in(revision), downgraded_in(revision))
    return Era(
        name="legacy",
        version=revision,
        converter=converter,
        server_methods=server_methods(revision),
        client_methods=client_methods(revision),
        client_notifications=client_notifications(revision),
        server_notifications=server_notifications(revision),
        client=CLIENT_RULES,
        seal=_make_seal(converter.unstructure, structured=revision >= "2025-06-18"),
        error_codes=_error_codes(revision),
        wanted_log_level=_wanted_log_level,
        declares_sampling_context=revision >= "2025-11-25",
        batches=revision == "2025-03-26",
        progress_message=revision >= "2025-03-26",
        mirrors_version=revision >= "2025-06-18",
        resumes=revision >= "2025-11-25",
        has_all_results=revision >= "2025-11-25",
    )


LEGACY: Mapping[str, Era] = MappingProxyType({revision: _make_era(revision) for revision in REVISIONS})
"""Oldest first. An era's tables are small and its hooks are made at first use, so making all costs next to nothing."""

LATEST_LEGACY = LEGACY[REVISIONS[-1]]
