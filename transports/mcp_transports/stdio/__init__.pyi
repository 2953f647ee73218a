"""The types of the public names, of which some are loaded late: see ``__init__.py``."""

from typing import Any

from mcp_transports.stdio.client import StdioClientTransport
from mcp_transports.stdio.server import StdioServerTransport

__all__ = ["StdioClientTransport", "StdioServerTransport", "from_url"]

def from_url(url: str, **options: Any) -> StdioServerTransport | StdioClientTransport: ...
