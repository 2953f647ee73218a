"""Bytes to requests: llhttp (through httptools) with the checks that it leaves to its users.

llhttp in its strict mode, which is the default, already refuses: a length beside chunked, two lengths, a list of
lengths, bare CR or LF as line endings of heads, trailers and chunks, folded lines, blanks before the colon, bad names
and values, NUL, malformed and overflowing chunk sizes, chunked twice or not last. It lets pass what is refused here:
versions that are not ours, other transfer codings, missing and repeated ``Host``, methods that nobody serves here,
and anything that is merely long.

A parser belongs to no connection: between two requests it has no state, so idle connections need none.
"""

from __future__ import annotations

import re
from typing import Literal, NoReturn

import httptools

from mcp_transports.http.h1.limits import HttpLimits
from mcp_transports.http.h1.request import MalformedRequest, Request

__all__ = ["RequestParser"]

State = Literal["between", "head", "body"]

# What HTTP resources of any kind may answer; CONNECT, TRACE and WebDAV's are nothing for a server of this kind.
_METHODS = {name.encode(): name for name in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")}
_TOKEN_AND_BLANK = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,32} ")
# RFC 3986 §3.2.2 and the port; no user information, which RFC 9110 §4.2.4 forbids in requests.
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+(?:%25[\w.~-]+)?\]|[\w.~!$&'()*+,;=%-]*)(?::[0-9]{0,5})?", re.ASCII)
_ABSOLUTE = re.compile(r"https?://([^/?#]*)(/[^?#]*)?(?:\?([^#]*))?", re.IGNORECASE)

_USUAL_NAMES = """
    Accept Accept-Encoding Accept-Language Authorization Cache-Control Connection Content-Encoding Content-Length
    Content-Type Cookie Expect Forwarded Host Keep-Alive Last-Event-ID MCP-Protocol-Version Mcp-Method Mcp-Name
    Mcp-Session-Id Mcp-Protocol-Version Origin Pragma Referer Sec-Fetch-Dest Sec-Fetch-Mode Sec-Fetch-Site
    Transfer-Encoding Upgrade User-Agent X-Forwarded-For X-Forwarded-Host X-Forwarded-Proto
"""
# Saves decoding for the spellings that clients use.
_NAMES = {
    spelling.encode(): name.lower() for name in _USUAL_NAMES.split() for spelling in (name, name.lower())
}
# Headers of which a second line is an attempt to be understood in two ways (RFC 9110 §5.3).
_SINGLE_NAMES = """
    authorization content-length content-location content-type date expect from host if-modified-since
    if-unmodified-since last-event-id max-forwards origin proxy-authorization range referer transfer-encoding
    user-agent
"""
_SINGLE = frozenset(_SINGLE_NAMES.split())
# Framing may cost so many bytes for each byte of a chunked body ("1\r\nx\r\n" costs five), beside a head's worth.
_CHUNK_OVERHEAD = 8
# Digits of 2**64, which llhttp holds lengths to; leading zeros would be counted for ever.
_LONGEST_LENGTH = 20


class _Stop(Exception):
    """Ends the parser out of a callback; the refusal is already noted."""


class RequestParser:
    """Feed it bytes; what is complete stands in ``ready``, in order.

    ``state`` tells where the bytes so far end. After ``finished`` became true nothing more is to be fed: a request
    that closes the connection, or a refusal, stands last in ``ready``.
    """

    __slots__ = (
        "_body_wire",
        "_chunked",
        "_feed",
        "_head_is_first",
        "_head_so_far",
        "_headers",
        "_http",
        "_keep_alive",
        "_limits",
        "_method",
        "_now_feeding",
        "_parts",
        "_path",
        "_query",
        "_repeats",
        "_seen_host",
        "_seen_url",
        "_target",
        "_upgrading",
        "_url",
        "_version",
        "body_received",
        "expects_continue",
        "finished",
        "head_received",
        "ready",
        "state",
    )

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self.ready: list[Request | MalformedRequest] = []
        self.state: State = "between"
        self.finished = False
        self.expects_continue = False
        self.body_received = 0
        self.head_received = 0
        self._upgrading = False
        # The bytes of a head that came in more than one read, in case that it asks for another protocol.
        self._head_so_far = bytearray()
        self._head_is_first = True
        self._method = self._target = self._path = self._query = self._version = ""
        # The last target and host that were found good: most requests come with the same ones.
        self._seen_url = b""
        self._seen_host = ""
        self._headers: dict[str, str] = {}
        self._parts: list[bytes] = []
        self._open()

    def _open(self) -> None:
        self._http = httptools.HttpRequestParser(self)
        self._feed = self._http.feed_data

    def close(self) -> None:
        """Lets go of the C parser, which refers to this object, and of everything half read."""
        del self._http, self._feed
        self._headers, self._parts, self.ready, self._head_so_far = {}, [], [], bytearray()

    def feed(self, data: bytes | memoryview) -> None:
        """Takes bytes from the wire. Never raises for what a peer sends."""
        size = self._now_feeding = len(data)
        began = self.state
        try:
            self._feed(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data, upgrade.args[0])
        except httptools.HttpParserError as error:
            self._refuse(error, data)
        if self.state == "between" or self.finished:
            return
        if self.state == "head":
            if self._head_is_first:
                self._head_so_far += data
            # Bytes of the feed in which a head began are not counted: they may belong to the request before it.
            if began == "head":
                self.head_received += size
                if self.head_received > self._limits.head_bytes:
                    self._give_up(431, "the request head is too long")
        elif self._chunked:
            if began == "body":
                self._body_wire += size
            if self._body_wire > _CHUNK_OVERHEAD * self.body_received + self._limits.head_bytes:
                self._give_up(400, "the chunk framing is too long")

    def refuse(self, status: int, reason: str) -> None:
        """Gives up on the request that is being read, for a reason from outside such as time."""
        self._give_up(status, reason)

    # -- called by llhttp -------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """The first byte of a request line."""
        if self.finished:
            raise _Stop
        self.state = "head"
        self._url = b""
        self._repeats = 0
        self._chunked = False
        self._body_wire = 0
        self.body_received = 0
        self.head_received = 0
        self._head_is_first = not self.ready

    def on_url(self, url: bytes) -> None:
        """A piece of the target."""
        self._url = self._url + url if self._url else url
        if len(self._url) > self._limits.target_bytes:
            self._stop(414, "the request target is too long")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header line, or one of a chunked body's trailer."""
        if self.state == "body":
            # Trailers mean nothing here (RFC 9110 §6.5.1 lets a recipient drop them), but they are counted.
            self._repeats += 1
            if self._repeats > self._limits.headers:
                self._stop(431, "too many trailer lines")
            return
        try:
            key = _NAMES[name]
        except KeyError:
            key = name.decode("latin-1").lower()
        text = value.decode("latin-1")
        if text and text[-1] in " \t":
            text = text.rstrip(" \t")
        headers = self._headers
        if key not in headers:
            headers[key] = text
            return
        self._repeats += 1
        if key in _SINGLE or key.startswith("mcp-"):
            self._stop(400, f"the header {key} is repeated")
        headers[key] += ("; " if key == "cookie" else ", ") + text

    def on_headers_complete(self) -> None:
        """The empty line after the head: everything that can be refused without the body is refused here."""
        http, headers, limits = self._http, self._headers, self._limits
        if len(headers) + self._repeats > limits.headers:
            self._stop(431, "too many header lines")
        if self.head_received + self._now_feeding > limits.head_bytes:
            # That much was fed, which may include a body and other requests: count exactly.
            size = len(self._url) + sum(len(name) + len(value) + 4 for name, value in headers.items())
            if size > limits.head_bytes:
                self._stop(431, "the request head is too long")
        self._version = version = http.get_http_version()
        if version != "1.1" and version != "1.0":
            self._stop(505, "only HTTP/1.1 and HTTP/1.0 are spoken here")
        method = _METHODS.get(http.get_method())
        if method is None:
            self._stop(501, "the method is not implemented")
        if self._url != self._seen_url or method != self._method:
            self._method = method
            self._seen_url = b""
            self._read_target(method)
        host = headers.get("host")
        if host is None:
            if version == "1.1":
                self._stop(400, "the header host is missing")
        elif host != self._seen_host:
            if not _HOST.fullmatch(host):
                self._stop(400, "the header host is malformed")
            self._seen_host = host
        self._keep_alive = http.should_keep_alive()
        self._read_framing(headers)
        if "upgrade" in headers:
            self._upgrading = http.should_upgrade()
        self.state = "body"

    def on_body(self, data: bytes) -> None:
        """A piece of the body, without framing."""
        self.body_received += len(data)
        if self.body_received > self._limits.body_bytes:
            self._stop(413, "the request body is too long")
        self._parts.append(data)

    def on_message_complete(self) -> None:
        """The last byte of a request."""
        if self._upgrading:
            return  # llhttp believes that another protocol begins here and has not read the body
        parts = self._parts
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        self.ready.append(
            Request(
                self._method,
                self._target,
                self._path,
                self._query,
                self._headers,
                body,
                self._version,
                self._keep_alive,
            )
        )
        # A parser that waits for its next request keeps nothing of this one alive.
        self._headers, self._parts = {}, []
        if self._head_so_far:
            self._head_so_far = bytearray()
        self.state = "between"
        self.expects_continue = False
        if not self._keep_alive:
            self.finished = True

    # -- parts of the above -----------------------------------------------------------------------------------------

    def _read_target(self, method: str) -> None:
        """RFC 9112 §3.2: origin-form, absolute-form (whose authority replaces ``Host``) and, for OPTIONS, ``*``."""
        self._target = target = self._url.decode("latin-1")
        if "#" in target:
            self._stop(400, "the request target has a fragment")
        if target.startswith("/"):
            self._path, _, self._query = target.partition("?")
            self._seen_url = self._url
        elif target == "*" and method == "OPTIONS":
            self._path, self._query = "*", ""
        elif found := _ABSOLUTE.fullmatch(target):
            authority, path, query = found.groups()
            if not authority:
                self._stop(400, "the request target has no host")
            if "host" in self._headers:
                self._headers["host"] = authority
            self._path, self._query = path or "/", query or ""
        else:
            self._stop(400, "the request target is malformed")

    def _read_framing(self, headers: dict[str, str]) -> None:
        coding = headers.get("transfer-encoding")
        if coding is not None:
            if coding.lower() != "chunked":
                self._stop(400, "chunked is the only transfer coding")
            if self._version != "1.1":
                self._stop(400, "HTTP/1.0 has no transfer codings")
            self._chunked = True
        length = headers.get("content-length")
        if length is not None and (len(length) > _LONGEST_LENGTH or int(length) > self._limits.body_bytes):
            self._stop(413, "the request body is too long")
        expectation = headers.get("expect")
        if expectation is not None and self._version == "1.1":
            if expectation.lower() != "100-continue":
                self._stop(417, "100-continue is the only expectation")
            self.expects_continue = self._chunked or length not in (None, "0")

    def _ignore_upgrade(self, data: bytes | memoryview, offset: int) -> None:
        """Goes on as if the request had not asked for another protocol (RFC 9110 §7.8 leaves that to the server).

        llhttp ended such a request at its head. If it has a body, which the h2c offers of some clients do, that body is
        read by a fresh parser that is told its framing.
        """
        rest = memoryview(data)
        head = bytes(self._head_so_far) + rest[:offset] if self._head_is_first else b""
        while True:
            rest = rest[offset:]
            self._upgrading = False
            length = self._headers.get("content-length", "0")
            try:
                if self._chunked or int(length):
                    head = b""
                    self._restart(length)
                else:
                    self.on_message_complete()
                    request = self.ready[-1]
                    if head and isinstance(request, Request):
                        request.head, head = head, b""
                if rest and not self.finished:
                    self._feed(rest)
                return
            except httptools.HttpParserUpgrade as upgrade:
                offset = upgrade.args[0]
            except httptools.HttpParserError as error:
                self._refuse(error, rest)
                return

    def _restart(self, length: str) -> None:
        kept = self._headers, self._method, self._target, self._path, self._query, self._version
        others = self._keep_alive, self._chunked, self.expects_continue
        framing = "Transfer-Encoding: chunked" if self._chunked else f"Content-Length: {length}"
        self._headers = {}
        self._open()
        self._now_feeding = 0
        self._feed(f"POST / HTTP/1.1\r\nHost: restart\r\n{framing}\r\n\r\n".encode())
        self._headers, self._method, self._target, self._path, self._query, self._version = kept
        self._keep_alive, self._chunked, self.expects_continue = others
        self._seen_url = b""

    def _stop(self, status: int, reason: str) -> NoReturn:
        self._give_up(status, reason)
        raise _Stop

    def _give_up(self, status: int, reason: str) -> None:
        self.finished = True
        self.expects_continue = False
        self.ready.append(MalformedRequest(status, reason))

    def _refuse(self, error: httptools.HttpParserError, data: bytes | memoryview) -> None:
        if self.finished:
            return  # noted by the callback that stopped the parser, or bytes after a request that closes
        if isinstance(error, httptools.HttpParserCallbackError):
            raise error  # a mistake of ours
        if isinstance(error, httptools.HttpParserInvalidMethodError):
            if _TOKEN_AND_BLANK.match(data):
                self._give_up(501, "the method is not implemented")
            else:
                self._give_up(400, "this is not HTTP")
        else:
            self._give_up(400, str(error))
