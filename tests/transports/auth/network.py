"""A network for tests: names that change their addresses, and servers at any address, in virtual time."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpcore2
import pytest
import trio
import trio.testing

Serve = Callable[[trio.abc.Stream, bytes], Awaitable[None]]


def reply(status: int, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def answering(data: bytes) -> Serve:
    async def serve(stream: trio.abc.Stream, head: bytes) -> None:
        await stream.send_all(data)

    return serve


class Network(trio.abc.HostnameResolver):
    """Resolves names by a script, and connects to servers of the test. It records what was asked of it.

    ``names`` has for each name the answers to one look-up after the other, the last of which is repeated. ``sites`` has
    the server of each address and port.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self.names: dict[str, list[Sequence[str]]] = {}
        self.sites: dict[tuple[str, int], Serve] = {}
        self.looked_up: list[str] = []
        self.connected: list[tuple[str, int]] = []
        self.tls: list[str | None] = []
        self.heads: list[bytes] = []
        self.open = 0
        self._nursery = nursery

    async def getaddrinfo(self, host: Any, port: Any, *args: Any, **options: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        self.looked_up.append(name)
        answers = self.names.get(name)
        if not answers:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        addresses = answers.pop(0) if len(answers) > 1 else answers[0]
        return [
            (socket.AF_INET6 if ":" in each else socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port))
            for each in addresses
        ]

    async def getnameinfo(self, *args: Any) -> Any:
        raise AssertionError("nobody asks for the name of an address")

    async def connect_tcp(self, host: str, port: int, timeout: float | None = None) -> PipeStream:
        self.connected.append((host, port))
        serve = self.sites.get((host, port))
        if serve is None:
            raise httpcore2.ConnectError("connection refused")
        near, far = trio.testing.memory_stream_pair()
        self._nursery.start_soon(self._serve, serve, far)
        self.open += 1
        return PipeStream(near, self)

    async def _serve(self, serve: Serve, stream: trio.abc.Stream) -> None:
        head = b""
        try:
            while b"\r\n\r\n" not in head:
                received = await stream.receive_some()
                if not received:
                    return
                head += received
            self.heads.append(bytes(head))
            await serve(stream, head)
            await stream.aclose()
        except trio.BrokenResourceError:
            await trio.aclose_forcefully(stream)


class PipeStream(httpcore2.AsyncNetworkStream):
    def __init__(self, stream: trio.abc.Stream, network: Network) -> None:
        self._stream = stream
        self._network = network
        self._closed = False

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return bytes(await self._stream.receive_some(max_bytes))

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.send_all(buffer)

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            self._network.open -= 1
            await trio.aclose_forcefully(self._stream)

    async def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> PipeStream:
        self._network.tls.append(server_hostname)
        return self

    def get_extra_info(self, info: str) -> Any:
        return None


@contextmanager
def in_place(network: Network, monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    """Has the fetcher look names up and connect in ``network``."""
    trio.socket.set_custom_hostname_resolver(network)
    monkeypatch.setattr(httpcore2, "TrioBackend", lambda: network)
    try:
        yield network
    finally:
        trio.socket.set_custom_hostname_resolver(None)
