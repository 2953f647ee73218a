"""Seals the state that a server hands to a client between the rounds of an input-required call.

The client cannot change it, keep it for long, or use it for another call, another principal or other arguments. It can
read it, so secrets do not belong in it, and it can send it twice: a seal is no guard against repetition.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

from mcp_actors._wire.codec import decode_value, encode_value
from mcp_actors.errors import INVALID_PARAMS, MalformedMessage, RpcError

__all__ = ["STATE_LIFETIME", "StateSealer"]

STATE_LIFETIME = 3600.0
"""Seconds. An hour is enough for a person to come back to a form, and a state that leaked is soon worthless."""

MIN_KEY_LENGTH = 16
"""Bytes. A shorter key could be guessed."""

_TAG_LENGTH = hashlib.sha256().digest_size
# Keeps tags made here apart from tags that the same key may make elsewhere.
_PURPOSE = b"mcp-actors request state 1"


class StateSealer:
    """Seals and opens with one key; every process that may get the retry needs the same one.

    Raises `ValueError` for a key shorter than `MIN_KEY_LENGTH`.
    """

    def __init__(self, key: bytes, *, lifetime: float = STATE_LIFETIME) -> None:
        if len(key) < MIN_KEY_LENGTH:
            raise ValueError(f"a state key needs at least {MIN_KEY_LENGTH} bytes")
        self._key = key
        self._lifetime = lifetime

    def __repr__(self) -> str:
        return f"<StateSealer lifetime={self._lifetime:g}s>"

    def seal(
        self, payload: dict[str, Any], *, method: str, target: Any, principal: str | None, now: float
    ) -> str:
        """Text that only this call of this principal can open until ``now`` (epoch seconds) plus the lifetime.

        ``target`` is the JSON value of the params that matter (name and arguments); only its digest is used.
        """
        body = encode_value([int(now + self._lifetime), payload])
        return _text(self._tag(body, method, target, principal) + body)

    def open(
        self, text: str, *, method: str, target: Any, principal: str | None, now: float
    ) -> dict[str, Any]:
        """The payload; raises `RpcError` -32602 for whatever was not sealed here for this very call, or is too old."""
        sealed = _bytes(text)
        tag, body = sealed[:_TAG_LENGTH], sealed[_TAG_LENGTH:]
        if not hmac.compare_digest(tag, self._tag(body, method, target, principal)):
            raise _refusal("was not issued for this request")
        try:
            expires, payload = decode_value(body)
        except (MalformedMessage, TypeError, ValueError):
            raise _refusal("is malformed") from None
        if now >= expires:
            raise _refusal("has expired")
        if not isinstance(payload, dict):
            raise _refusal("is malformed")
        return payload

    def _tag(self, body: bytes, method: str, target: Any, principal: str | None) -> bytes:
        mac = hmac.new(self._key, _PURPOSE, hashlib.sha256)
        canonical = json.dumps(target, sort_keys=True, separators=(",", ":")).encode()
        who = b"" if principal is None else b"=" + principal.encode("utf-8", "surrogatepass")
        for part in (method.encode(), hashlib.sha256(canonical).digest(), who, body):
            # Lengths first: no part can pass for the end of its neighbour.
            mac.update(len(part).to_bytes(8, "big"))
            mac.update(part)
        return mac.digest()


def _refusal(why: str) -> RpcError:
    return RpcError(INVALID_PARAMS, f"requestState {why}")


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _bytes(text: Any) -> bytes:
    if not isinstance(text, str) or not text.isascii():
        raise _refusal("is malformed")
    try:
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        raise _refusal("is malformed") from None
    # The decoder passes over foreign characters and loose bits; here one value has exactly one spelling.
    if _text(data) != text:
        raise _refusal("is malformed")
    return data
