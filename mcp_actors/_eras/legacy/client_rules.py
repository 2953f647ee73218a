"""A client in the revisions with sessions: the handshake says everything once, so requests repeat nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp_actors._eras.client_rules import ClientRules

__all__ = ["CLIENT_RULES"]


def _request_meta(version: str, capabilities: Any, info: Any, log_level: str | None) -> dict[str, Any]:
    return {}


def _mirrored_params(schema: Mapping[str, Any]) -> tuple[Any, ...]:
    return ()


CLIENT_RULES = ClientRules(
    handshake_method="initialize",
    ping_method="ping",
    log_level_method="logging/setLevel",
    listen_method=None,
    visits_urls_on_error=True,
    request_meta=_request_meta,
    mirrored=None,
    mirrored_params=_mirrored_params,
)
