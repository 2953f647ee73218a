"""The nonces of a protected server for proofs of possession (RFC 9449 section 9), without a table of them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
import secrets
import struct

__all__ = ["Nonces"]

# Seconds for which a nonce is good, and for which the same one is given out.
LIFETIME = 300.0
SAME_FOR = 60.0
_TAG_BYTES = 16
_TIME = struct.Struct(">d")


class Nonces:
    """Makes nonces, and knows its own: each is the time at which it was made and a tag by a key of this process,
    or by one that several processes have, which know each other's nonces.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._is_shared = False
        self._good_since = -math.inf
        self._current = ""
        self._made_at = 0.0

    def __repr__(self) -> str:
        return "<Nonces>"

    def share(self, key: bytes) -> None:
        """Makes the nonces of all processes good that were given the same key, and those given out so far bad."""
        self._key, self._is_shared = key, True
        self._current = ""

    def replace(self, now: float) -> None:
        """Makes every nonce bad that was given out so far."""
        if self._is_shared:
            self._good_since = now
        else:
            self._key = secrets.token_bytes(32)
        self._current = ""

    def current(self, now: float) -> str:
        """Returns the nonce to give out, which is a new one each minute."""
        if not self._current or not 0 <= now - self._made_at < SAME_FOR:
            packed = _TIME.pack(now)
            text = base64.urlsafe_b64encode(packed + self._tag(packed)).decode("ascii")
            self._current, self._made_at = text.rstrip("="), now
        return self._current

    def is_good(self, nonce: object, now: float) -> bool:
        """Returns whether a nonce is ours and not too old."""
        if not isinstance(nonce, str) or len(nonce) != _CHARS or not nonce.isascii():
            return False
        try:
            raw = base64.urlsafe_b64decode(nonce)
        except ValueError:
            return False
        packed, tag = raw[: _TIME.size], raw[_TIME.size :]
        if len(raw) != _TIME.size + _TAG_BYTES or not hmac.compare_digest(tag, self._tag(packed)):
            return False
        made_at: float = _TIME.unpack(packed)[0]
        return made_at >= self._good_since and -SAME_FOR <= now - made_at <= LIFETIME

    def _tag(self, packed: bytes) -> bytes:
        return hmac.digest(self._key, packed, hashlib.sha256)[:_TAG_BYTES]


# 24 bytes in base64 need no padding.
_CHARS = (_TIME.size + _TAG_BYTES) * 4 // 3
