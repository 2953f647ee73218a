"""The table of all pairs: (our client, our server) x binding x revision x how it was agreed x feature."""

from __future__ import annotations

import ssl
import sys
import tempfile
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import attrs
import httpx2
import pytest
import trio
import trustme

from mcp_actors import Client, Server
from mcp_actors.abc.discovery import server_transport
from mcp_transports.http.client import HttpClientTransport
from mcp_transports.http.server import HttpServerTransport
from mcp_transports.stdio import StdioClientTransport
from tests.pairs.features import FEATURES, ROOTS, Feature, Pair, answer_form, answer_model
from tests.pairs.server import make_server

__all__ = ["BINDINGS", "Binding"]


# -- How each binding serves the server, and what a client is given to reach it --------------------------

ROOT = Path(__file__).parents[2]
MODERN = "2026-07-28"
EVERY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", MODERN)


@attrs.frozen
class Binding:
    """A row of the table of bindings."""

    name: str
    reached: Callable[[tuple[str, ...]], AbstractAsyncContextManager[Any]]
    """Serves a server of these revisions, and yields the target of a client."""
    versions: tuple[str, ...] = EVERY
    sessions: bool = True
    """Whether clients of the revisions that have sessions get one."""
    connection: bool = False
    """Whether it is one connection, of which the server knows in every revision."""
    over_http: bool = True
    """Whether an HTTP request brings the calls, or opened the connection."""


@asynccontextmanager
async def _in_process(versions: tuple[str, ...]) -> AsyncIterator[Server]:
    yield make_server(versions)


@asynccontextmanager
async def _stdio(versions: tuple[str, ...]) -> AsyncIterator[Any]:
    # On a busy machine a child may need longer to exit than a server usually has.
    yield StdioClientTransport([sys.executable, "-m", "tests.pairs.server", *versions], cwd=ROOT, grace=20)


@asynccontextmanager
async def _served(transport: Any, versions: tuple[str, ...]) -> AsyncIterator[str]:
    async with trio.open_nursery() as nursery:
        (url,) = await nursery.start(make_server(versions).serve, transport)
        yield url
        nursery.cancel_scope.cancel()


def _at(url: str) -> Callable[[tuple[str, ...]], AbstractAsyncContextManager[Any]]:
    """A server and a client at a URL; ``{folder}`` becomes a new folder, as a URL has it."""

    @asynccontextmanager
    async def reached(versions: tuple[str, ...]) -> AsyncIterator[Any]:
        with tempfile.TemporaryDirectory() as folder:
            whole = url.format(folder=folder, quoted=quote(folder, safe=""))
            async with _served(server_transport(whole), versions) as target:
                yield target

    return reached


def _http(
    url: str = "http://127.0.0.1:0/mcp", path: str = "/mcp", **options: Any
) -> Callable[[tuple[str, ...]], AbstractAsyncContextManager[Any]]:
    @asynccontextmanager
    async def reached(versions: tuple[str, ...]) -> AsyncIterator[Any]:
        async with _served(HttpServerTransport(url, **options), versions) as target:
            yield target.removesuffix("/mcp") + path

    return reached


@asynccontextmanager
async def _https(versions: tuple[str, ...]) -> AsyncIterator[Any]:
    """With a client object of the user's own, which knows the authority."""
    authority = trustme.CA()
    ours, theirs = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(ours)
    authority.configure_trust(theirs)
    transport = HttpServerTransport("https://127.0.0.1:0/mcp", ssl_context=ours)
    async with _served(transport, versions) as url, httpx2.AsyncClient(verify=theirs) as client:
        yield HttpClientTransport(url, client=client)


BINDINGS = (
    Binding("a server object", connection=True, over_http=False, reached=_in_process),
    Binding("stdio", connection=True, over_http=False, reached=_stdio),
    Binding("memory", connection=True, over_http=False, reached=_at("memory:pairs")),
    Binding("tcp", connection=True, over_http=False, reached=_at("tcp://127.0.0.1:0")),
    Binding("unix", connection=True, over_http=False, reached=_at("unix://{folder}/socket")),
    Binding("websocket", connection=True, reached=_at("ws://127.0.0.1:0/ws")),
    Binding("http", _http()),
    Binding("http, JSON only", _http(json_replies=True)),
    Binding("http without sessions", _http(sessions=False), sessions=False),
    Binding("http without stored events", _http(event_log=None)),
    Binding("http over a Unix socket", _at("http+unix://{quoted}%2Fsocket/mcp")),
    Binding("https", _https),
    Binding("http+sse", _http(path="/sse"), versions=EVERY[:-1]),
)


# ----------------------------------------------------------------------------------------------------

# Seconds for one feature; nothing here waits for longer than a moment on a machine that is not busy.
PATIENCE = 60

AGREEMENTS = ("told", "found out", "among all")
"""The client is told the revision, or finds it out from a server that has no other, or both have all of them."""


def options(agreement: str, version: str) -> tuple[str, tuple[str, ...]]:
    """Returns what the client is told, and which revisions the server has."""
    if agreement == "told":
        return version, (version,)
    if agreement == "found out":
        return "auto", (version,)
    return version, ()


PAIRS = [
    pytest.param(binding, version, agreement, id=f"{binding.name}-{version}-{agreement}")
    for binding in BINDINGS
    for version in binding.versions
    for agreement in AGREEMENTS
]


async def failure(feature: Feature, pair: Pair) -> str | None:
    """Runs one cell of the table and says what was wrong with it."""
    try:
        with trio.fail_after(PATIENCE):
            await feature(pair)
    except (Exception, pytest.fail.Exception) as error:  # the cells after this one are tried all the same
        last = "".join(traceback.format_exception(error)[-3:])
        return f"{feature.__name__}: {last}"
    return None


@pytest.mark.parametrize(("binding", "version", "agreement"), PAIRS)
async def test_every_feature_of_a_pair(binding: Binding, version: str, agreement: str) -> None:
    era, versions = options(agreement, version)
    logged: list[Any] = []
    notified: list[Any] = []
    remembered = binding.sessions or version == MODERN
    # Without a session only a header names the revision, which the oldest two do not have.
    alone = not remembered and agreement == "among all"
    served = max(version, "2025-03-26") if alone else version
    async with (
        binding.reached(versions or BINDINGS[0].versions) as target,
        Client(
            target,
            era=era,
            sampling=answer_model,
            elicitation=answer_form,
            roots=ROOTS,
            on_notification=lambda method, params: notified.append((method, params)),
            on_log=lambda level, data, logger: logged.append((level, data, logger)),
        ) as client,
    ):
        kept = binding.connection or (remembered and version != MODERN)
        pair = Pair(client, version, served, remembered, kept, binding.over_http, logged, notified)
        failures = [said for feature in FEATURES if (said := await failure(feature, pair))]
    assert not failures, "\n\n".join(failures)


def test_the_size_of_the_table() -> None:
    """No binding, revision or feature disappears unseen."""
    assert len(BINDINGS) == 13
    assert len(PAIRS) == 12 * 5 * 3 + 4 * 3
    assert len(PAIRS) * len(FEATURES) == 192 * 32
