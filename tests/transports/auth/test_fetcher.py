"""Requests to URLs that came from the network: which are made, where to, and what bounds them."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpcore2
import pytest
import trio
import trio.testing
import trustme

from mcp_actors.auth import UrlPolicy
from mcp_actors.auth.effects import Fetch, Fetched, FetchFailed
from mcp_transports.auth.fetcher import Fetcher

# -- A network for tests: names that change their addresses, and servers at any address, in virtual time ---

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


# -- requests --------------------------------------------------------------------------------------------

REMOTE = "https://mcp.example/mcp"
LOCAL = "http://127.0.0.1:8000/mcp"
GLOBAL, OTHER = "93.184.216.34", "2606:4700::1111"
SECRET = "s3cret-value"


@pytest.fixture
def network(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    monkeypatch.setattr("mcp_transports.auth.fetcher._trusted_authorities", ssl.create_default_context)
    with in_place(Network(nursery), monkeypatch) as network:
        network.names = {"as.example": [[GLOBAL]], "other.example": [[OTHER]], "mcp.example": [[GLOBAL]]}
        yield network


async def ask(
    url: str, *, configured: str = REMOTE, policy: UrlPolicy | None = None, **options: object
) -> Fetched | FetchFailed:
    fetcher = Fetcher(policy or UrlPolicy(), configured)
    return await fetcher.fetch(Fetch("GET", url, **options))  # type: ignore[arg-type]


def failed(answer: Fetched | FetchFailed, *, refused: bool = False) -> str:
    assert isinstance(answer, FetchFailed)
    assert answer.refused is refused
    assert SECRET not in answer.reason
    return answer.reason


async def test_a_request_goes_to_the_address_that_was_checked_under_the_name_of_its_host(
    network: Network,
) -> None:
    network.sites[GLOBAL, 8443] = answering(reply(200, b"{}", "X-One: 1", "x-one: 2"))
    answer = await ask("https://as.example:8443/a?b=c", headers=[("accept", "application/json")])
    assert answer == Fetched(200, [("content-length", "2"), ("x-one", "1"), ("x-one", "2")], b"{}")
    assert network.connected == [(GLOBAL, 8443)]
    assert network.tls == ["as.example"]
    lines = network.heads[0].lower().split(b"\r\n")
    assert lines[0] == b"get /a?b=c http/1.1"
    assert b"host: as.example:8443" in lines
    assert b"accept: application/json" in lines
    assert b"connection: close" in lines
    assert network.open == 0


async def test_a_body_is_sent_whole(network: Network) -> None:
    network.sites[GLOBAL, 443] = answering(reply(400, b"no"))
    fetch = Fetch("POST", "https://as.example/token", [("authorization", "Basic x")], b"grant_type=x")
    answer = await Fetcher(UrlPolicy(), REMOTE).fetch(fetch)
    assert isinstance(answer, Fetched)
    assert (answer.status, answer.body) == (400, b"no")
    assert b"content-length: 12" in network.heads[0].lower()


@pytest.mark.parametrize(
    "url",
    [
        "http://as.example/x",
        "javascript:alert(1)",
        "file:///etc/passwd",
        "data:,x",
        "ftp://as.example/",
        "//as.example/",
        "https:///x",
        f"https://user:{SECRET}@as.example/",
        "https://as.example/\r\nX: y",
        "https://as.example/ x",
        "https://as.example:0x50/",
        "http://[::1",
        "",
    ],
)
async def test_other_urls_are_refused_before_anything_is_looked_up(network: Network, url: str) -> None:
    failed(await ask(url, configured=LOCAL), refused=True)
    assert network.looked_up == network.connected == []


INSIDE = [
    "169.254.169.254",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "127.0.0.1",
    "0.0.0.0",
    "0.1.2.3",
    "224.0.0.1",
    "255.255.255.255",
    "198.18.0.1",
    "240.0.0.1",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::a00:1",
    "2002:7f00:1::",
    "2001::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fec0::1",
    "ff02::1",
    "ff0e::1",
    "2001:db8::1",
]


@pytest.mark.parametrize("address", INSIDE)
async def test_an_address_that_is_not_global_is_never_connected_to(network: Network, address: str) -> None:
    literal = f"https://[{address}]/x" if ":" in address else f"https://{address}/x"
    assert "allowed_hosts" in failed(await ask(literal), refused=True)
    network.names["as.example"] = [[address]]
    failed(await ask("https://as.example/x"), refused=True)
    # One good address among the others makes the host no better.
    network.names["as.example"] = [[GLOBAL, address]]
    failed(await ask("https://as.example/x"), refused=True)
    assert network.connected == []


@pytest.mark.parametrize(
    "host", ["2130706433", "0x7f.1", "0x7f000001", "127.1", "017700000001", "2852039166"]
)
async def test_other_spellings_of_an_address_are_what_the_resolver_takes_them_for(
    network: Network, host: str
) -> None:
    failed(await ask(f"https://{host}/x"), refused=True)
    assert network.connected == []


@pytest.mark.parametrize(
    "host", ["0177.0.0.1", "127.0.0.0x1", "169.254.169.254.", "[fe80::1%25lo]", "[::1%25lo]"]
)
async def test_addresses_that_are_malformed_are_not_connected_to(network: Network, host: str) -> None:
    assert isinstance(await ask(f"https://{host}/x"), FetchFailed)
    assert network.connected == []


async def test_a_name_that_changes_between_check_and_connect_changes_nothing(network: Network) -> None:
    network.names["as.example"] = [[GLOBAL], ["127.0.0.1"]]
    network.sites[GLOBAL, 443] = answering(reply(200, b"{}"))
    assert isinstance(await ask("https://as.example/x"), Fetched)
    assert network.looked_up == ["as.example"]
    assert network.connected == [(GLOBAL, 443)]
    failed(await ask("https://as.example/x"), refused=True)


async def test_the_next_address_is_tried(network: Network) -> None:
    network.names["as.example"] = [[GLOBAL, OTHER]]
    network.sites[OTHER, 443] = answering(reply(200))
    assert isinstance(await ask("https://as.example/x"), Fetched)
    assert network.connected == [(GLOBAL, 443), (OTHER, 443)]


async def test_hosts_that_cannot_be_had_are_said_to_be_so(network: Network) -> None:
    assert "looked up" in failed(await ask("https://nowhere.example/x?token=" + SECRET))
    assert "reached" in failed(await ask("https://as.example/x?token=" + SECRET))
    network.names["many.example"] = [[f"93.184.{i}.1" for i in range(99)]]
    assert "more than 32" in failed(await ask("https://many.example/"))


@pytest.mark.parametrize(
    ("configured", "address", "allowed"),
    [
        (LOCAL, "127.0.0.1", True),
        ("http://localhost:8000/mcp", "127.0.0.2", True),
        ("http://[::1]:8000/mcp", "::1", True),
        (LOCAL, "10.0.0.1", False),
        (LOCAL, "169.254.169.254", False),
        ("https://10.0.0.7/mcp", "10.9.9.9", True),
        ("https://10.0.0.7/mcp", "127.0.0.1", False),
        ("https://10.0.0.7/mcp", "169.254.169.254", False),
        ("https://intranet.example/mcp", "192.168.0.2", True),
        ("https://mixed.example/mcp", "192.168.0.2", False),
        # Whoever owns the name of a server can have it point to this machine.
        ("https://rebound.example/mcp", "127.0.0.1", False),
        ("https://169.254.0.1/mcp", "169.254.169.254", False),
        ("https://unknown.example/mcp", "10.0.0.1", False),
    ],
)
async def test_the_kind_of_the_configured_servers_own_address_is_allowed(
    network: Network, configured: str, address: str, allowed: bool
) -> None:
    network.names |= {
        "intranet.example": [["10.0.0.7", "fd00::7"]],
        "mixed.example": [["10.0.0.7", GLOBAL]],
        "rebound.example": [["127.0.0.1"]],
        "as.example": [[address]],
    }
    network.sites[address, 443] = answering(reply(200))
    answer = await ask("https://as.example/x", configured=configured)
    assert isinstance(answer, Fetched) is allowed
    assert network.connected == ([(address, 443)] if allowed else [])


async def test_the_configured_servers_name_is_looked_up_once(network: Network) -> None:
    network.names |= {"intranet.example": [[GLOBAL], ["10.0.0.7"]], "as.example": [["10.0.0.1"]]}
    fetcher = Fetcher(UrlPolicy(), "https://intranet.example/mcp")
    for _ in range(2):
        failed(await fetcher.fetch(Fetch("GET", "https://as.example/")), refused=True)
    assert network.looked_up.count("intranet.example") == 1


async def test_a_policy_may_allow_hosts_or_all(network: Network) -> None:
    network.sites["as.internal", 443] = answering(reply(200))
    for policy in (UrlPolicy(allowed_hosts=["AS.internal"]), UrlPolicy(checks_addresses=False)):
        assert isinstance(await ask("https://as.internal/x", policy=policy), Fetched)
        failed(await ask("http://as.internal/x", policy=policy), refused=True)
    failed(await ask("https://10.0.0.1/x", policy=UrlPolicy(allowed_hosts=["as.internal"])), refused=True)
    assert "as.internal" not in network.looked_up


# -- redirections -------------------------------------------------------------------------------------------------


async def test_no_redirection_is_followed_unless_it_is_asked_for(network: Network) -> None:
    network.sites[GLOBAL, 443] = answering(reply(307, b"", "location: https://other.example/"))
    answer = await ask("https://as.example/x")
    assert isinstance(answer, Fetched)
    assert (answer.status, answer.header("location")) == (307, "https://other.example/")
    token = Fetch("POST", "https://as.example/token", (), b"code=x", redirects=3)
    answer = await Fetcher(UrlPolicy(), REMOTE).fetch(token)
    assert isinstance(answer, Fetched)
    assert answer.status == 307
    assert network.connected == [(GLOBAL, 443)] * 2


async def test_credentials_are_not_taken_to_another_origin(network: Network) -> None:
    async def serve(stream: trio.abc.Stream, head: bytes) -> None:
        target = "/y" if b"GET /x " in head else "https://other.example/z#top"
        await stream.send_all(reply(302, b"", f"Location: {target}", f"set-cookie: a={SECRET}"))

    network.sites[GLOBAL, 443] = serve
    network.sites[OTHER, 443] = answering(reply(200, b"{}"))
    headers = [("Authorization", SECRET), ("DPoP", SECRET), ("Cookie", SECRET), ("Accept", "a/b")]
    answer = await ask("https://as.example/x", headers=headers, redirects=3)
    assert isinstance(answer, Fetched)
    assert answer.status == 200
    same, again, elsewhere = network.heads
    assert same.count(SECRET.encode()) == again.count(SECRET.encode()) == 3
    assert SECRET.encode() not in elsewhere
    assert elsewhere.startswith(b"GET /z HTTP/1.1\r\n")
    assert b"a/b" in elsewhere


@pytest.mark.parametrize(
    "target",
    [
        "https://169.254.169.254/latest",
        "https://inside.example/",
        "http://127.0.0.1/",
        "http://other.example/",
        "javascript:alert(1)",
        "file:///etc/passwd",
        "https://user@other.example/",
        "https://[::1",
        # The library for URLs and that of Python each have errors of their own.
        "http:////[xn--a",
        "https://as.example:99999999/",
    ],
)
async def test_a_redirection_is_checked_as_the_first_url_is(network: Network, target: str) -> None:
    network.names["inside.example"] = [["10.0.0.1"]]
    network.sites[GLOBAL, 443] = answering(reply(302, b"", f"location: {target}"))
    failed(await ask("https://as.example/x", redirects=3), refused=True)
    assert network.connected == [(GLOBAL, 443)]


async def test_redirections_are_counted(network: Network) -> None:
    network.sites[GLOBAL, 443] = answering(reply(302, b"", "location: /again"))
    assert "more than 3" in failed(await ask("https://as.example/x", redirects=3))
    assert len(network.connected) == 4


# -- bounds -------------------------------------------------------------------------------------------------------


def endless(head: bytes, piece: bytes) -> object:
    async def serve(stream: trio.abc.Stream, _: bytes) -> None:
        await stream.send_all(head)
        while True:
            await stream.send_all(piece)

    return serve


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 1000),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (b"HTTP/1.1 200 OK\r\nx: ", b"y" * 1000),
        (b"HTTP/1.1 200 OK\r\n", b"x: y\r\n"),
        (reply(200, b"", "content-encoding: gzip"), b""),
        (b"", b"rubbish " * 9),
    ],
)
async def test_an_answer_without_end_is_given_up(network: Network, head: bytes, piece: bytes) -> None:
    network.sites[GLOBAL, 443] = endless(head, piece)  # type: ignore[assignment]
    failed(await ask("https://as.example/x", max_bytes=5000))
    assert network.open == 0


async def test_a_body_may_have_as_many_bytes_as_is_said(network: Network) -> None:
    network.sites[GLOBAL, 443] = answering(reply(200, b"x" * 5000))
    assert isinstance(await ask("https://as.example/x", max_bytes=5000), Fetched)
    assert "more than 4999" in failed(await ask("https://as.example/x", max_bytes=4999))


@pytest.mark.parametrize(
    "sent", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx"]
)
async def test_a_slow_server_is_given_up(
    network: Network, autojump_clock: trio.testing.MockClock, sent: bytes
) -> None:
    async def serve(stream: trio.abc.Stream, _: bytes) -> None:
        if sent:
            await stream.send_all(sent)
        await trio.sleep_forever()

    network.sites[GLOBAL, 443] = serve
    start = trio.current_time()
    assert "10 s" in failed(await ask("https://as.example/x"))
    assert trio.current_time() - start == pytest.approx(10)
    assert network.open == 0


async def test_a_server_that_sends_a_byte_now_and_then_is_given_up_all_the_same(
    network: Network, autojump_clock: trio.testing.MockClock
) -> None:
    async def serve(stream: trio.abc.Stream, _: bytes) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            await trio.sleep(1)
            await stream.send_all(b"x")

    network.sites[GLOBAL, 443] = serve
    assert "10 s" in failed(await ask("https://as.example/x"))


async def test_cancelled_the_connection_is_closed(
    network: Network, autojump_clock: trio.testing.MockClock
) -> None:
    async def serve(stream: trio.abc.Stream, _: bytes) -> None:
        await trio.sleep_forever()

    network.sites[GLOBAL, 443] = serve
    with trio.move_on_after(1) as scope:
        await ask("https://as.example/x")
    assert scope.cancelled_caught
    assert network.open == 0
    network.sites[GLOBAL, 443] = answering(reply(200))
    assert isinstance(await ask("https://as.example/x"), Fetched)


# -- proxies ------------------------------------------------------------------------------------------------------


async def test_a_proxy_of_the_environment_is_used_and_the_addresses_are_checked_all_the_same(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def serve(stream: trio.abc.Stream, head: bytes) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\n\r\n")
        network.heads.append(bytes(await stream.receive_some()))
        await stream.send_all(reply(200, b"{}"))

    monkeypatch.setenv("HTTPS_PROXY", "http://me:pw@proxy.internal:3128")
    network.sites["proxy.internal", 3128] = serve
    for host in ("as.example", "only-the-proxy-knows.example"):
        network.heads.clear()
        answer = await ask(f"https://{host}/x")
        assert isinstance(answer, Fetched)
        assert answer.body == b"{}"
        assert network.heads[0].startswith(f"CONNECT {host}:443 HTTP/1.1\r\n".encode())
        assert b"basic " in network.heads[0].lower()
    connected = list(network.connected)
    network.names["inside.example"] = [["10.0.0.1"]]
    failed(await ask("https://inside.example/x"), refused=True)
    failed(await ask("https://169.254.169.254/x"), refused=True)
    assert network.connected == connected
    network.sites["127.0.0.1", 80] = answering(reply(200))
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.internal:3128")
    assert isinstance(await ask("http://127.0.0.1/x", configured=LOCAL), Fetched)
    monkeypatch.setenv("NO_PROXY", "as.example")
    network.sites[GLOBAL, 443] = answering(reply(200))
    assert isinstance(await ask("https://as.example/x"), Fetched)
    assert network.connected[-2:] == [("127.0.0.1", 80), (GLOBAL, 443)]


@pytest.mark.parametrize("proxy", ["socks5://proxy.internal:1080", "http://[::1"])
async def test_a_proxy_that_cannot_be_used_is_said_to_be_so(
    network: Network, monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    assert "proxy" in failed(await ask("https://as.example/x"))
    assert network.connected == []


# -- TLS ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "trusted"), [("as.example", True), ("other.example", False)])
async def test_the_certificate_is_checked_for_the_name_although_an_address_is_connected_to(
    nursery: trio.Nursery, name: str, trusted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for timeout in ("CONNECT_TIMEOUT", "FETCH_TIMEOUT"):  # these sockets are real, and a machine may be busy
        monkeypatch.setattr(f"mcp_transports.auth.fetcher.{timeout}", 60.0)
    authority = trustme.CA()
    ours, theirs = ssl.create_default_context(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.configure_trust(ours)
    authority.issue_cert(name).configure_cert(theirs)

    async def serve(stream: trio.SSLStream[trio.SocketStream]) -> None:
        try:
            await stream.receive_some()
            await stream.send_all(reply(200, b"{}"))
            await stream.aclose()
        except trio.BrokenResourceError:
            await trio.aclose_forcefully(stream)

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, serve, [trio.SSLListener(listener, theirs)])
    network = Network(nursery)
    network.names["as.example"] = [["127.0.0.1"]]
    trio.socket.set_custom_hostname_resolver(network)
    try:
        fetcher = Fetcher(UrlPolicy(), LOCAL, tls=ours)
        port = listener.socket.getsockname()[1]
        answer = await fetcher.fetch(Fetch("GET", f"https://as.example:{port}/x"))
    finally:
        trio.socket.set_custom_hostname_resolver(None)
    assert isinstance(answer, Fetched) is trusted
    nursery.cancel_scope.cancel()
