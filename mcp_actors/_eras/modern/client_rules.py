"""A client in the stateless revisions: each request says who sends it and what it can do."""

from __future__ import annotations

from typing import Any

from mcp_actors._eras.client_rules import ClientRules
from mcp_actors._eras.modern.annotations import annotated_params
from mcp_actors._eras.modern.meta_keys import CAPABILITIES, CLIENT_INFO, LOG_LEVEL, VERSION
from mcp_actors._eras.modern.mirror import mirrored

__all__ = ["CLIENT_RULES"]


def _request_meta(version: str, capabilities: Any, info: Any, log_level: str | None) -> dict[str, Any]:
    meta = {VERSION: version, CAPABILITIES: capabilities, CLIENT_INFO: info}
    if log_level is not None:
        meta[LOG_LEVEL] = log_level
    return meta


CLIENT_RULES = ClientRules(
    handshake_method="server/discover",
    # There is no ping: discovery is the cheapest request that every server must answer.
    ping_method="server/discover",
    log_level_method=None,
    listen_method="subscriptions/listen",
    visits_urls_on_error=False,
    request_meta=_request_meta,
    mirrored=mirrored,
    mirrored_params=annotated_params,
)
