"""A modern request explains itself: version, capabilities and identity come in its own ``_meta``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mcp_actors._eras.era import Era, Invocation, Method, Peer, progress_token
from mcp_actors._eras.modern.annotations import MirroredParam
from mcp_actors._eras.modern.eras import MODERN
from mcp_actors._eras.modern.meta_keys import CAPABILITIES, CLIENT_INFO, LOG_LEVEL, VERSION
from mcp_actors._eras.modern.mirror import check_names, check_params, check_version, version_header
from mcp_actors._wire.messages import RequestId
from mcp_actors.errors import INVALID_PARAMS, MethodNotFound, RpcError, UnsupportedVersion
from mcp_actors.types import LOGGING_LEVELS

__all__ = ["open_request"]


def open_request(
    id: RequestId,
    name: str,
    params: dict[str, Any],
    *,
    served: Sequence[str],
    supported: Sequence[str],
    method: Method | None,
    metadata: Mapping[str, str] | None = None,
    mirrored_params: Callable[[str], Sequence[MirroredParam]] = lambda tool: (),
) -> Invocation:
    """Checks in the order that the revision prescribes: metadata keys, version, what is mirrored, method, the rest.

    ``served`` are the modern versions that can be asked for, ``supported`` all that `server/discover` tells.
    ``metadata`` is what was mirrored, ``None`` where nothing is; ``mirrored_params`` are those of a tool.
    """
    if metadata is not None:
        version_header(metadata)
    meta = params.pop("_meta", None)
    if not isinstance(meta, dict):
        raise RpcError(INVALID_PARAMS, f"params._meta must be an object with {VERSION} and {CAPABILITIES}")
    version, capabilities = meta.get(VERSION), meta.get(CAPABILITIES)
    if not isinstance(version, str):
        raise RpcError(INVALID_PARAMS, f"_meta needs {VERSION}, a string")
    if not isinstance(capabilities, dict):
        raise RpcError(INVALID_PARAMS, f"_meta needs {CAPABILITIES}, an object")
    if metadata is not None:
        check_version(metadata, version)
    if version not in served:
        raise UnsupportedVersion(version, list(supported))
    era = MODERN[version]
    method = method or era.server_methods.get(name)
    if metadata is not None:
        check_names(metadata, name, params, method.target if method else None)
        if name == "tools/call":
            check_params(metadata, mirrored_params(params.get("name", "")), params.get("arguments"))
    if method is None:
        raise MethodNotFound(name)
    return _invocation(era, method, id, params, meta, capabilities)


def _invocation(
    era: Era,
    method: Method,
    id: RequestId,
    params: dict[str, Any],
    meta: dict[str, Any],
    capabilities: dict[str, Any],
) -> Invocation:
    level = meta.get(LOG_LEVEL)
    if level is not None and level not in LOGGING_LEVELS:
        raise RpcError(INVALID_PARAMS, f"{LOG_LEVEL} must be one of {', '.join(LOGGING_LEVELS)}")
    token = progress_token(meta)
    peer = Peer(era, capabilities, meta.get(CLIENT_INFO), level)
    invocation = Invocation(era, method, params, meta, peer, id, token, level)
    if method.may_ask:
        _read_retry(invocation, params)
    return invocation


def _read_retry(invocation: Invocation, params: dict[str, Any]) -> None:
    """Multi round-trip requests: a retry repeats the request and adds answers and the state it was given."""
    answers, state = params.pop("inputResponses", None), params.pop("requestState", None)
    if answers is not None and not isinstance(answers, Mapping):
        raise RpcError(INVALID_PARAMS, "inputResponses must be an object")
    if state is not None and not isinstance(state, str):
        raise RpcError(INVALID_PARAMS, "requestState must be a string")
    invocation.answers, invocation.state = answers, state
