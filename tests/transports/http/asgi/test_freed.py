"""Memory of requests that have ended: none waits for the garbage collector."""

from __future__ import annotations

import gc

from tests.transports.http.asgi.test_requests import HOST, POSTED, Site, ask, call, on_asyncio, session

ROUNDS = 10


@on_asyncio
async def test_a_request_leaves_no_cycle_whatever_its_answer() -> None:
    site = Site()
    async with site.app.lifespan():
        session_headers = await session(site.app)
        requests = {
            200: {"headers": session_headers},
            404: {"headers": session_headers, "path": "/other"},
            403: {"headers": ((b"host", b"other.example"), *POSTED[1:])},
            400: {"headers": (HOST, HOST)},
        }
        cyclic = {}
        for status, options in requests.items():
            for rounds in (2, ROUNDS):
                gc.collect()
                gc.disable()
                try:
                    for _ in range(rounds):
                        exchange = await ask(site.app, call("add", a=1, b=2), **options)  # type: ignore[arg-type]
                        assert exchange.status == status
                    # The engine has ended with it when it answers another one.
                    del exchange
                    await ask(site.app, call("add", a=1, b=2), headers=session_headers)
                    cyclic[status] = gc.collect()
                finally:
                    gc.enable()
    assert all(each < ROUNDS for each in cyclic.values()), cyclic
