"""Seals the ``requestState`` that a server gives to a client between the rounds of an input-required call (SEP-2322).

The client cannot change the state, use it after it has expired, or use it for another call, another principal or other
arguments. It can read the state, so secrets do not belong in it, and it can send it twice: the seal does not prevent
repetition.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

from mcp_actors._wire.codec import decode_value, encode_value
from mcp_actors.errors import INVALID_PARAMS, MalformedMessage, RpcError
from mcp_actors.principal import Principal

__all__ = ["STATE_LIFETIME", "StateSealer"]

STATE_LIFETIME = 3600.0
"""Seconds. A person may come back to a form within an hour, and a leaked state soon expires."""

MIN_KEY_LENGTH = 16
"""Bytes. A shorter key could be guessed."""

_TAG_LENGTH = hashlib.sha256().digest_size
# Part of each tag, so that it differs from any tag that is made elsewhere with the same key.
_PURPOSE = b"mcp-actors request state 1"


class StateSealer:
    """Seals and opens states with one key. All processes that may receive the retry need the same key.

    Args:
        key: at least `MIN_KEY_LENGTH` bytes.
        lifetime: seconds until a state expires.

    Raises:
        ValueError: for a shorter key.
    """

    def __init__(self, key: bytes, *, lifetime: float = STATE_LIFETIME) -> None:
        if len(key) < MIN_KEY_LENGTH:
            raise ValueError(f"a state key needs at least {MIN_KEY_LENGTH} bytes")
        self._key = key
        self._lifetime = lifetime

    def __repr__(self) -> str:
        return f"<StateSealer lifetime={self._lifetime:g}s>"

    def seal(
        self, payload: dict[str, Any], *, method: str, target: Any, principal: Principal | None, now: float
    ) -> str:
        """Returns a text that opens only for the same call of the same principal, and not later than the lifetime.

        Args:
            target: the JSON value of the params that must not change (name and arguments); only its digest is used.
            now: the time in seconds since the epoch.
        """
        body = encode_value([int(now + self._lifetime), payload])
        return _text(self._tag(body, method, target, principal) + body)

    def open(
        self, text: str, *, method: str, target: Any, principal: Principal | None, now: float
    ) -> dict[str, Any]:
        """Returns the payload. Raises `RpcError` -32602 for a text that was not sealed for this call or expired."""
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

    def _tag(self, body: bytes, method: str, target: Any, principal: Principal | None) -> bytes:
        mac = hmac.new(self._key, _PURPOSE, hashlib.sha256)
        canonical = json.dumps(target, sort_keys=True, separators=(",", ":")).encode()
        owner = b"" if principal is None else b"=" + principal.key.encode("utf-8", "surrogatepass")
        for part in (method.encode(), hashlib.sha256(canonical).digest(), owner, body):
            # The length goes first, so that no part can be taken for the end of the one before.
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
    # The decoder ignores foreign characters and unused bits; here each value has exactly one spelling.
    if _text(data) != text:
        raise _refusal("is malformed")
    return data
