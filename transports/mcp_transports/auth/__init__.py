"""Authorization under Trio: the driver of `mcp_actors.auth`, ways to log in, and a store of tokens in a file."""

from __future__ import annotations

from mcp_transports.auth.browsers import (
    LoopbackBrowser,
    NoBrowser,
    PastedAnswer,
    ProgramRedirect,
    default_browser,
)
from mcp_transports.auth.file_store import FileTokenStore

__all__ = [
    "FileTokenStore",
    "LoopbackBrowser",
    "NoBrowser",
    "PastedAnswer",
    "ProgramRedirect",
    "default_browser",
]
