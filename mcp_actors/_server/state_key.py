"""The key that all processes of one server have in common."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import secrets

__all__ = ["VARIABLE", "derived_key", "state_key_of_environment", "use_state_key"]

VARIABLE = "MCP_ACTORS_STATE_KEY"
"""The environment variable that has the key where a program gives none, in hexadecimal digits or in base64."""

_KEY_BYTES = 32
_SHORTEST = 16
_HEXADECIMAL = re.compile(r"(?:[0-9A-Fa-f]{2})+")


# What `use_state_key` was given. The programs that a tool starts get the environment, and must not get it.
_given: list[bytes] = []


def use_state_key(key: bytes) -> None:
    """Has the servers of this process use a key where the environment has none; an empty one changes nothing."""
    _given[:] = [key] if key else []


def state_key_of_environment() -> bytes:
    """Returns the key of `VARIABLE`; if it is not set, that of `use_state_key`, or a random one.

    Raises:
        ValueError: It is neither hexadecimal nor base64, or too short. The text does not show it.
    """
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return _given[0] if _given else secrets.token_bytes(_KEY_BYTES)
    try:
        if _HEXADECIMAL.fullmatch(text):
            key = bytes.fromhex(text)
        else:
            standard = text.replace("-", "+").replace("_", "/").rstrip("=")
            key = base64.b64decode(standard + "=" * (-len(standard) % 4), validate=True)
    except ValueError:
        raise ValueError(
            f"{VARIABLE} is neither hexadecimal digits nor base64: make one with `openssl rand -hex {_KEY_BYTES}`"
        ) from None
    if len(key) < _SHORTEST:
        raise ValueError(
            f"{VARIABLE} has {len(key)} bytes, and at least {_SHORTEST} are needed: make one with "
            f"`openssl rand -hex {_KEY_BYTES}`"
        )
    return key


def derived_key(key: bytes, purpose: str) -> bytes:
    """Returns a key for one purpose, from which neither ``key`` nor the key for another purpose is known."""
    return hmac.digest(key, f"mcp-actors {purpose}".encode(), hashlib.sha256)
