"""Authorization under Trio: the driver of `mcp_actors.auth`, ways to log in, and a store of tokens in a file."""

from __future__ import annotations

from mcp_transports.auth.browsers import NoBrowser, PastedAnswer, ProgramRedirect, default_browser
from mcp_transports.auth.file_store import FileTokenStore
from mcp_transports.auth.loopback import LoopbackBrowser

__all__ = [
    "FileTokenStore",
    "LoopbackBrowser",
    "NoBrowser",
    "PastedAnswer",
    "ProgramRedirect",
    "default_browser",
]
