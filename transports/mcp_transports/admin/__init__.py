"""The live view over HTTP: an admin endpoint at a Unix socket or a loopback address, and a client of it.

It is served beside the transports of a server::

    server.run("http://127.0.0.1:8000/mcp", AdminTransport("unix:/run/weather/admin.sock"))
"""

from __future__ import annotations

from mcp_transports.admin.admin_client import AdminClient, AdminRefused
from mcp_transports.admin.endpoint import AdminTransport

__all__ = ["AdminClient", "AdminRefused", "AdminTransport"]
