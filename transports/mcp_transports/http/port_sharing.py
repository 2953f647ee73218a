"""`share_port` of the HTTP server, with the errors of the engine."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager

from mcp_transports._listen_errors import as_engine_errors
from mcp_transports.http.h1 import shared_port
from mcp_transports.http.h1.limits import HttpLimits
from mcp_transports.http.h1.request import ListenUrl
from mcp_transports.http.h1.server_state import App

__all__ = ["share_port"]


@asynccontextmanager
async def share_port(
    where: ListenUrl,
    app: App,
    *,
    ssl_context: ssl.SSLContext | None,
    limits: HttpLimits,
    upgrades: bool = False,
    documents: Iterable[str] = (),
    to_the_end: bool = False,
) -> AsyncIterator[shared_port.PortShare]:
    """Listens at an address, or joins the application that does: see `mcp_transports.http.h1.shared_port`.

    Raises:
        ConnectFailed: The address cannot be listened at, or is served with another ``ssl_context``.
        LocalProtocolError: The path of a Unix socket is too long for the system, or is none.
    """
    async with AsyncExitStack() as stack:
        with as_engine_errors():
            share = await stack.enter_async_context(
                shared_port.share_port(
                    where,
                    app,
                    ssl_context=ssl_context,
                    limits=limits,
                    upgrades=upgrades,
                    documents=documents,
                    to_the_end=to_the_end,
                )
            )
        yield share
