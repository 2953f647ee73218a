"""The key that all processes of one server have in common."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import secrets

__all__ = ["VARIABLE", "derived_key", "state_key_of_environment"]

VARIABLE = "MCP_ACTORS_STATE_KEY"
"""The environment variable that has the key where a program gives none, in hexadecimal digits or in base64."""

_KEY_BYTES = 32
_SHORTEST = 16
_HEXADECIMAL = r"(?:[0-9A-Fa-f]{2})+"


def state_key_of_environment() -> bytes:
    """Returns the key of `VARIABLE`, or a random one if it is not set.

    Raises:
        ValueError: It is neither hexadecimal nor base64, or too short. The text does not show it.
    """
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return secrets.token_bytes(_KEY_BYTES)
    try:
        if re.fullmatch(_HEXADECIMAL, text):
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
