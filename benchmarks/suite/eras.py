"""The differences between the two eras for a raw load."""

from __future__ import annotations

from typing import Literal

__all__ = ["LEGACY_VERSION", "META", "MODERN_VERSION", "Era"]

Era = Literal["legacy", "modern"]

LEGACY_VERSION = "2025-11-25"
MODERN_VERSION = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN_VERSION,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "load", "version": "1"},
}
