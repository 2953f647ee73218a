"""Servers made of APIs: of an OpenAPI document, and of an ASGI application of the same program.

`mcp_actors.Server.from_openapi` and `mcp_actors.Server.from_asgi` are the doors. Here are the types of what programs
write for them, and `Api`, which says what became of each operation. From the inside: `document` reads and resolves,
`schemas` writes schemas that hosts read, `operations` decides about names and arguments, `requests` makes requests of
arguments, `calls` sends them, `api` puts tools and resources into a server, and `in_process` calls an application.
"""

from __future__ import annotations

from mcp_actors.openapi.api import Api, OperationOutcome, Routes, ServedAs
from mcp_actors.openapi.calls import Credential, Credentials, RequestHeaders
from mcp_actors.openapi.operations import Operation, SecurityScheme

__all__ = [
    "Api",
    "Credential",
    "Credentials",
    "Operation",
    "OperationOutcome",
    "RequestHeaders",
    "Routes",
    "SecurityScheme",
    "ServedAs",
]
