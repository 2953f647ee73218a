"""The differences between the two eras for a raw load."""

from __future__ import annotations

from typing import Literal

from mcp_actors._eras.legacy.revisions import REVISIONS
from mcp_actors._eras.modern.eras import LATEST_MODERN
from mcp_actors._eras.modern.meta_keys import CAPABILITIES, CLIENT_INFO, VERSION

__all__ = ["LEGACY_VERSION", "META", "MODERN_VERSION", "Era"]

Era = Literal["legacy", "modern"]

LEGACY_VERSION, MODERN_VERSION = REVISIONS[-1], LATEST_MODERN.version
META = {VERSION: MODERN_VERSION, CAPABILITIES: {}, CLIENT_INFO: {"name": "load", "version": "1"}}
