"""Bytes to requests: llhttp (through httptools) with the checks that it leaves to its users.

llhttp in its strict mode, which is the default, already refuses: a length beside chunked, two lengths, a list of
lengths, bare CR or LF as line endings of heads, trailers and chunks, folded lines, blanks before the colon, bad names
and values, NUL, malformed and overflowing chunk sizes, chunked twice or not last. This module refuses what llhttp lets
pass: versions other than 1.0 and 1.1, other transfer codings, missing and repeated ``Host``, methods that this server
does not have, and anything that is too long.

llhttp ends a request that asks for another protocol at its head. RFC 9110 section 7.8 lets a server ignore that wish,
so the body has to be read all the same: see `RequestParser._ignore_upgrade`.

A parser belongs to no connection: between two requests it has no state, so idle connections need none.
"""

from __future__ import annotations

from typing import Literal, NoReturn

import httptools
import msgspec

from mcp_actors.supervision.budget import Account, Budget, holder_of
from mcp_actors.supervision.logging import log
from mcp_transports.http.h1.limits import HttpLimits
from mcp_transports.http.h1.request import (
    ABSOLUTE_FORM,
    HOST,
    LOWER_NAMES,
    METHOD_AND_BLANK,
    METHODS,
    SINGLE_VALUED,
    MalformedRequest,
    Request,
)

__all__ = ["HeldBodies", "ParserPool", "PartialRequest", "RequestParser"]

State = Literal["between", "head", "body"]
# Framing may cost so many bytes for each byte of a chunked body ("1\r\nx\r\n" costs five), beside a head's worth.
_CHUNK_OVERHEAD = 8
# Digits of 2**64, the limit of llhttp for lengths. It would accept any number of leading zeros.
_LONGEST_LENGTH = 20
# Read again in front of a body whose request asked for another protocol: only their framing is used.
_CHUNKED_HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
_LENGTH_HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
# Parsers kept for the next request: some more than are in the middle of a request at one time.
_SPARE_PARSERS = 64
_END_OF_HEAD = b"\r\n\r\n"
# Heads that are remembered at a time, and bytes of a request up to which its head is.
_KNOWN_HEADS = 64
_LONGEST_REPEATED = 4096
# What a request must not have whose head is remembered: more decides then on what belongs to it.
_OTHER_FRAMING = frozenset({"transfer-encoding", "expect", "upgrade"})


class _Stop(Exception):
    """Ends llhttp from inside a callback; the refusal is noted already."""


class _Target(msgspec.Struct, frozen=True, gc=False):
    """A request target that was found good: most requests come with the same one as the request before."""

    method: str
    url: bytes
    target: str
    path: str
    query: str


class PartialRequest(msgspec.Struct, gc=False):
    """The state of the request that is being read."""

    url: bytes = b""
    lines: int = 0
    """Header lines beyond the first of their name; in a body, lines of the trailer."""
    size: int = 0
    """Bytes of reads that brought nothing but this head, or this body with its framing."""
    is_first: bool = False
    """Whether no other request came in the read in which this one began."""
    head: bytearray | None = None
    """Of a first request whose head came in more than one read, the bytes so far."""
    request: Request | None = None
    """Made when the head is complete."""
    chunked: bool = False
    upgrade: bool = False
    """Whether llhttp ends the request at its head because it asks for another protocol."""
    expects_continue: bool = False
    parts: list[bytes] = []
    body_size: int = 0
    charged: int = 0
    """Bytes of the body that the connection has charged to its peer."""
    body_began: float | None = None
    """The time at which the body began; set and used by the connection, for the time limit of the body."""


_NO_MESSAGE = PartialRequest()


class RequestParser:
    """Takes the bytes of one connection; complete requests are put into `ready`, in order.

    Nothing more may be fed once `finished` is true: then the last item of `ready` is
    a request that closes the connection, or a refusal.
    """

    __slots__ = (
        "_fed",
        "_fresh",
        "_headers",
        "_http",
        "_known_host",
        "_known_target",
        "_limits",
        "_replaying",
        "finished",
        "message",
        "ready",
        "state",
    )

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._http = httptools.HttpRequestParser(self)
        self._known_target = _Target("", b"", "", "", "")
        self._known_host = ""
        self._fed = 0
        self._fresh = False
        self._replaying = False
        self._headers: dict[str, str] = {}
        self.message = _NO_MESSAGE
        """The request that is being read, unless `state` is ``"between"``."""
        self.ready: list[Request | MalformedRequest] = []
        self.state: State = "between"
        """Where the bytes that were fed end."""
        self.finished = False

    def close(self) -> None:
        """Drops the C parser, which refers to this object, and any request that is read in part."""
        del self._http
        self.message = _NO_MESSAGE
        self._headers, self.ready = {}, []

    def feed(self, data: bytes | memoryview) -> None:
        """Takes bytes from the peer. Never raises for what a peer sends."""
        size = self._fed = len(data)
        self._fresh = self.state == "between"
        try:
            self._http.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data, upgrade.args[0])
        except httptools.HttpParserError as error:
            self._refuse(error, data)
        if self.state != "between" and not self.finished:
            if self.state == "head" and self.message.is_first:
                self.message.head = (self.message.head or bytearray()) + data
            self._check_size(size)

    def _check_size(self, size: int) -> None:
        # A read in which a head or a body began is not counted: its bytes may belong to what was before.
        if self._fresh:
            return
        message = self.message
        message.size += size
        if self.state == "head":
            if message.size > self._limits.head_bytes:
                self.refuse(431, "the request head is too long")
        elif message.chunked and message.size > _CHUNK_OVERHEAD * message.body_size + self._limits.head_bytes:
            self.refuse(400, "the chunk framing is too long")

    def refuse(self, status: int, reason: str) -> None:
        """Replaces the request that is being read by a `MalformedRequest`."""
        self.finished = True
        self.message.expects_continue = False
        self.ready.append(MalformedRequest(status, reason))

    # -- called by llhttp -------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begins a request, at the first byte of its request line."""
        if self._replaying:
            return
        if self.finished:
            raise _Stop
        self.state = "head"
        self._fresh = True
        self.message = PartialRequest(is_first=not self.ready)

    def on_url(self, url: bytes) -> None:
        """Takes a piece of the target."""
        if self._replaying:
            return
        message = self.message
        message.url = message.url + url if message.url else url
        if len(message.url) > self._limits.target_bytes:
            self._stop(414, "the request target is too long")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes a header line, or one of a chunked body's trailer."""
        if self.state == "body":
            # RFC 9110 section 6.5.1 lets a recipient drop trailers; they are counted all the same.
            if not self._replaying:
                self.message.lines += 1
                if self.message.lines > self._limits.headers:
                    self._stop(431, "too many trailer lines")
            return
        try:
            key = LOWER_NAMES[name]
        except KeyError:
            key = name.decode("latin-1").lower()
        text = value.decode("latin-1")
        if text and text[-1] in " \t":
            text = text.rstrip(" \t")
        headers = self._headers
        if key not in headers:
            headers[key] = text
            return
        self.message.lines += 1
        if key in SINGLE_VALUED or key.startswith("mcp-"):
            self._stop(400, f"the header {key} is repeated")
        headers[key] += ("; " if key == "cookie" else ", ") + text

    def on_headers_complete(self) -> None:
        """Ends the head, and refuses every request that can be refused without its body."""
        if self._replaying:
            self._replaying = False
            return
        http, message, limits = self._http, self.message, self._limits
        headers = self._headers
        if len(headers) + message.lines > limits.headers:
            self._stop(431, "too many header lines")
        if message.size + self._fed > limits.head_bytes:
            # So much was fed, which may include a body and other requests: count exactly.
            size = len(message.url) + sum(len(name) + len(value) + 4 for name, value in headers.items())
            if size > limits.head_bytes:
                self._stop(431, "the request head is too long")
        version = http.get_http_version()
        if version != "1.1" and version != "1.0":
            self._stop(505, "only HTTP/1.1 and HTTP/1.0 are spoken here")
        method = METHODS.get(http.get_method())
        if method is None:
            self._stop(501, "the method is not implemented")
        known = self._known_target
        if message.url != known.url or method != known.method:
            known = self._read_target(method)
        host = headers.get("host")
        if host is None:
            if version == "1.1":
                self._stop(400, "the header host is missing")
        elif host != self._known_host:
            if not HOST.fullmatch(host):
                self._stop(400, "the header host is malformed")
            self._known_host = host
        self._read_framing(version, headers)
        message.request = Request(
            method, known.target, known.path, known.query, headers, b"", version, http.should_keep_alive()
        )
        message.lines = message.size = 0
        if "upgrade" in headers:
            message.upgrade = http.should_upgrade()
        self.state = "body"
        self._fresh = True

    def on_body(self, data: bytes) -> None:
        """Takes a piece of the body, without framing."""
        message = self.message
        message.body_size += len(data)
        if message.body_size > self._limits.body_bytes:
            self._stop(413, "the request body is too long")
        message.parts.append(data)

    def on_message_complete(self) -> None:
        """Ends a request, at its last byte."""
        message = self.message
        if message.upgrade:
            return  # llhttp takes what follows for another protocol and has not read the body
        request, parts = message.request, message.parts
        assert request is not None
        request.body = parts[0] if len(parts) == 1 else b"".join(parts)
        self.ready.append(request)
        # A parser that waits for its next request must not hold memory of this one.
        self._headers = {}
        self.message = _NO_MESSAGE
        self.state = "between"
        if not request.keep_alive:
            self.finished = True

    # -- parts of the above -----------------------------------------------------------------------------------------

    def _read_target(self, method: str) -> _Target:
        """Reads the target (RFC 9112 section 3.2): origin-form, absolute-form, which replaces ``Host``, or ``*``."""
        message = self.message
        target = message.url.decode("latin-1")
        if "#" in target:
            self._stop(400, "the request target has a fragment")
        if target.startswith("/"):
            path, _, query = target.partition("?")
            self._known_target = known = _Target(method, message.url, target, path, query)
            return known
        if target == "*" and method == "OPTIONS":
            return _Target(method, message.url, target, "*", "")
        found = ABSOLUTE_FORM.fullmatch(target)
        if found is None:
            self._stop(400, "the request target is malformed")
        authority, path, query = found.groups()
        if not authority:
            self._stop(400, "the request target has no host")
        if "host" in self._headers:
            self._headers["host"] = authority
        return _Target(method, message.url, target, path or "/", query or "")

    def _read_framing(self, version: str, headers: dict[str, str]) -> None:
        message = self.message
        coding = headers.get("transfer-encoding")
        if coding is not None:
            if coding.lower() != "chunked":
                self._stop(400, "chunked is the only transfer coding")
            if version != "1.1":
                self._stop(400, "HTTP/1.0 has no transfer codings")
            message.chunked = True
        length = headers.get("content-length")
        if length is not None and (len(length) > _LONGEST_LENGTH or int(length) > self._limits.body_bytes):
            self._stop(413, "the request body is too long")
        expectation = headers.get("expect")
        if expectation is not None and version == "1.1":
            if expectation.lower() != "100-continue":
                self._stop(417, "100-continue is the only expectation")
            message.expects_continue = message.chunked or length not in (None, "0")

    def _ignore_upgrade(self, data: bytes | memoryview, offset: int) -> None:
        """Goes on as if the request had not asked for another protocol, which RFC 9110 section 7.8 allows.

        llhttp ended the request at its head. Only llhttp decodes chunks here, and it learns a body's framing from
        nothing but a head. So a fresh parser reads a head that has the framing of this one and nothing else, of which
        no callback takes notice, and then the body.
        """
        rest = memoryview(data)[offset:]
        head = bytes((self.message.head or b"") + memoryview(data)[:offset]) if self.message.is_first else b""
        while True:
            message = self.message
            message.upgrade = False
            length = int(self._headers.get("content-length", "0"))
            try:
                if message.chunked or length:
                    head = b""
                    self._http = httptools.HttpRequestParser(self)
                    self._replaying = True
                    self._http.feed_data(_CHUNKED_HEAD if message.chunked else _LENGTH_HEAD % length)
                else:
                    self.on_message_complete()
                    request = self.ready[-1]
                    if head and isinstance(request, Request):
                        # The other protocol is shown what really arrived.
                        request.head, head = head, b""
                if rest and not self.finished:
                    self._http.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as upgrade:
                rest = rest[upgrade.args[0] :]
            except httptools.HttpParserError as error:
                self._refuse(error, rest)
                return

    def _stop(self, status: int, reason: str) -> NoReturn:
        self.refuse(status, reason)
        raise _Stop

    def _refuse(self, error: httptools.HttpParserError, data: bytes | memoryview) -> None:
        if self.finished:
            return  # noted by the callback that stopped the parser, or bytes after a request that closes
        if isinstance(error, httptools.HttpParserCallbackError):
            try:
                raise error  # a mistake of this module, or no memory
            finally:
                # Its traceback has this frame: the pieces of the body would wait for the garbage collector.
                del error
        if isinstance(error, httptools.HttpParserInvalidMethodError):
            if METHOD_AND_BLANK.match(data):
                self.refuse(501, "the method is not implemented")
            else:
                self.refuse(400, "this is not HTTP")
        else:
            self.refuse(400, str(error))


class ParserPool:
    """Parsers between two requests, kept for the next request of any connection; and the budget of what they read.

    The requests of a client differ in their bodies, and their heads come again byte for byte. A head is parsed once a
    tick of the clock, and the request behind the same bytes is made of what came out then.
    """

    __slots__ = ("_heads", "_limits", "_spare", "bodies")

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self.bodies = Budget(limits.held_bytes, limits.held_bytes_per_address)
        """The bodies of requests that are not answered yet, by address."""
        self._spare: list[RequestParser] = []
        # By the bytes of the head; the bodies of these requests are empty. Nothing is kept here for longer than a tick,
        # because its peer may be gone, and there may be secrets in it.
        self._heads: dict[bytes, Request] = {}

    def repeated(self, data: bytes | memoryview) -> Request | None:
        """Returns the request that ``data`` is, whole and with nothing behind it, if its head is known."""
        if not self._heads or len(data) > _LONGEST_REPEATED:
            return None
        data = bytes(data)
        end = data.find(_END_OF_HEAD) + len(_END_OF_HEAD)
        known = self._heads.get(data[:end])
        if known is None or int(known.headers["content-length"]) != len(data) - end:
            return None
        return Request(
            known.method,
            known.target,
            known.path,
            known.query,
            known.headers.copy(),
            data[end:],
            known.version,
            known.keep_alive,
        )

    def learn(self, data: bytes | memoryview, requests: list[Request | MalformedRequest]) -> None:
        """Remembers the head of ``data``, from which ``requests`` were read, if it is that of one whole request."""
        (request, *others), heads = requests, self._heads
        if others or isinstance(request, MalformedRequest) or not request.keep_alive:
            return
        if len(data) > _LONGEST_REPEATED or len(heads) >= _KNOWN_HEADS:
            return
        headers = request.headers
        if "content-length" not in headers or not _OTHER_FRAMING.isdisjoint(headers):
            return
        head = bytes(data[: len(data) - len(request.body)])
        # Blank lines may stand before a request, where one would be taken for the end of the head.
        if head.find(_END_OF_HEAD) == len(head) - len(_END_OF_HEAD):
            heads[head] = msgspec.structs.replace(request, headers=headers.copy(), body=b"")

    def forget_heads(self) -> None:
        """Forgets the heads that came since it was called last."""
        self._heads.clear()

    def take(self) -> RequestParser:
        """Returns a parser that is between two requests."""
        return self._spare.pop() if self._spare else RequestParser(self._limits)

    def give_back(self, parser: RequestParser) -> None:
        """Keeps a parser that is between two requests, or closes it if there are enough."""
        if len(self._spare) < _SPARE_PARSERS:
            self._spare.append(parser)
        else:
            parser.close()

    def close(self) -> None:
        """Closes the parsers that are kept, and forgets what they have read."""
        self.forget_heads()
        while self._spare:
            self._spare.pop().close()


class HeldBodies:
    """Charges the bodies of one connection to its peer, until the requests are answered.

    Args:
        budget: What the bodies of all connections are charged to.
        peer: The address of the peer.
    """

    __slots__ = ("_account",)

    def __init__(self, budget: Budget, peer: str) -> None:
        self._account = Account(budget, holder_of(peer))

    def charge(self, body: PartialRequest) -> str | None:
        """Charges the bytes of a body since the last call; returns the reason if there is no room for them."""
        amount = body.body_size - body.charged
        over = self._account.charge(amount)
        if over is None:
            body.charged += amount
            return None
        log.debug("a request body is refused", holder=self._account.holder, limit_of=over)
        whose = "one address" if over == "holder" else "all clients together"
        limit = self._account.budget.limit_of(over)
        return f"too many bytes in bodies of unanswered requests of {whose}: the limit is {limit}"

    def release(self, kept: int) -> None:
        """Takes back what was charged for requests that are answered, all but ``kept`` bytes."""
        self._account.keep(kept)
