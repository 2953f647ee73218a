"""The caller of a call, as limits count callers, and what a call is about."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Any

from mcp_actors._eras.era import Invocation, shown_target
from mcp_actors._server.context import holder_of
from mcp_actors._wire.codec import encode_value
from mcp_actors.server import Context

__all__ = ["as_json", "caller_of", "target_of"]

# What is not shown of a URI: the user information in its authority, its query, and its fragment (RFC 3986, section 3).
# Characters of a target that are shown: a client may have made it up.
LONGEST_TARGET = 200


def caller_of(ctx: Context) -> str:
    """Returns a text that is the same for all calls of one caller.

    That is the principal. Without one it is the address, of IPv6 the network of one customer, since a caller that is
    refused could open another session. With stdio, Unix sockets and in memory there is no address: it is the session.

    Args:
        ctx: The context of a call.
    """
    # All requests of a session have its principal; only scopes and claims may differ.
    principal = ctx.call.invocation.principal
    if principal is not None:
        return f"principal {principal.key}"
    holder = holder_of(ctx)
    if holder is not None and _is_address(holder):
        return holder
    return f"session {ctx.call.owner.name}"


@lru_cache(1024)
def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True


def target_of(invocation: Invocation) -> str | None:
    """Returns the first characters of what a call is about, as `shown_target` returns it."""
    target = shown_target(invocation)
    return None if target is None else target[:LONGEST_TARGET]


def as_json(ctx: Context, result: Any) -> bytes:
    """Returns a result as JSON, in the form of the call's revision and without what is added to every result.

    Raises:
        TypeError, ValueError: JSON cannot hold it.
    """
    return encode_value(result if isinstance(result, dict) else ctx.era.unstructure(result))
