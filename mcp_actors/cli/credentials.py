"""The certificate of a server, and the keys of its callers: files that are read again when they change.

``--certificate`` and ``--key`` make addresses of TLS. ``--api-keys`` lets callers in who present a key that the file
has, which is enough for few callers without an authorization server. A line of it is one key::

    SUBJECT sha256:DIGEST [SCOPE ...]

The digest is that of the key, in hexadecimal digits, so the file lets nobody in who reads it. Keys are random, as
``mcp-actors config api-key`` makes them: a password that somebody has chosen could be found by its digest.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib
import os
import re
import secrets
import ssl
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Generic, Protocol, TypeVar

import attrs

from mcp_actors.auth.server.guard import MalformedCredentials, read_credentials
from mcp_actors.gateway.server_entry import UnusableFile, read_file
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.principal import Principal

__all__ = ["ApiKeys", "KeyedRequest", "KeysFile", "LookedAt", "new_key", "tls_context"]

# Seconds between two looks at a file, which one of the requests or handshakes then pays for.
LOOK_EVERY = 1.0
MAX_KEYS = 1000
MAX_KEYS_BYTES = 1024 * 1024

_T = TypeVar("_T")


class LookedAt(Generic[_T]):
    """Keeps what was read of some files, and reads it again when one of them has changed.

    Args:
        paths: The files.
        read: Reads them.
        failed: Called with what `read` has raised when it was called again, and returns what counts from then on.
        clock: Returns seconds.

    Raises:
        Exception: What `read` raises the first time.
    """

    def __init__(
        self,
        paths: Collection[str],
        read: Callable[[], _T],
        failed: Callable[[Exception, _T], _T],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._paths = paths
        self._read = read
        self._failed = failed
        self._clock = clock
        self._seen = self._signature()
        self._looked = clock()
        self._value = read()

    def __repr__(self) -> str:
        return f"<LookedAt {', '.join(self._paths)}>"

    def current(self) -> _T:
        """Returns what the files have, at most `LOOK_EVERY` seconds ago."""
        now = self._clock()
        if now - self._looked >= LOOK_EVERY:
            self._looked = now
            seen = self._signature()
            if seen != self._seen:
                self._seen = seen
                try:
                    self._value = self._read()
                except Exception as error:
                    self._value = self._failed(error, self._value)
        return self._value

    def _signature(self) -> list[tuple[int, int, int] | None]:
        return [_signature(path) for path in self._paths]


def _signature(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    # A file that is replaced is another one, also where it has the same time and length.
    return found.st_mtime_ns, found.st_size, found.st_ino


# -- The certificate -----------------------------------------------------------------------------------


def tls_context(
    certificate: str, key: str | None, clock: Callable[[], float] = time.monotonic
) -> ssl.SSLContext:
    """Returns the context of a server's TLS. Connections that come after the files have changed get the new ones.

    Files that cannot be used later, as in the middle of a renewal, are logged, and the former certificate goes on.

    Args:
        certificate: The file of the certificate with those that it is signed by, as PEM.
        key: The file of its private key, without a password; ``None`` if the first file has it.
        clock: Returns seconds.

    Raises:
        ValueError: The files cannot be used; the message says why.
    """
    names = certificate if key is None else f"{certificate} and {key}"

    def no_password() -> str:
        raise ValueError(
            f"{names}: the private key has a password: nobody is asked for it; write the key without one"
        )

    def read() -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            made.load_cert_chain(certificate, key, password=no_password)
        except OSError as error:
            # The module has no better words for a file that is not PEM, or has no key in it.
            reason = error.reason if isinstance(error, ssl.SSLError) and error.reason else error.strerror
            raise ValueError(
                f"{names}: it is not a certificate with its key, as PEM ({reason or error})"
            ) from None
        return made

    def failed(error: Exception, former: ssl.SSLContext) -> ssl.SSLContext:
        log.error("a certificate has changed and cannot be used: the former one goes on", reason=str(error))
        return former

    files = LookedAt([certificate] if key is None else [certificate, key], read, failed, clock)
    context = files.current()

    def choose(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = files.current()

    context.sni_callback = choose
    return context


# -- The keys of callers -------------------------------------------------------------------------------

_LINE = re.compile(r"(\S+)\s+sha256:([0-9a-fA-F]{64})((?:\s+\S+)*)")
# RFC 6749 section 3.3.
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")


@attrs.frozen
class _Key:
    digest: bytes = attrs.field(repr=False)
    principal: Principal


@attrs.frozen
class KeysFile:
    """The keys of a file, and what is wrong with some of its lines."""

    keys: tuple[_Key, ...]
    problems: tuple[str, ...] = ()
    """``FILE:LINE: …``; nothing of the line is shown."""

    @classmethod
    def read(cls, path: str) -> KeysFile:
        """Reads a file.

        Raises:
            UnusableFile: It cannot be read, or has more than `MAX_KEYS` lines.
        """
        lines = read_file(path, MAX_KEYS_BYTES).splitlines()
        keys: list[_Key] = []
        problems: list[str] = []
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            found = _LINE.fullmatch(text)
            if found is None:
                problems.append(f"{path}:{number}: it is not SUBJECT sha256:DIGEST [SCOPE ...]")
                continue
            scopes = found[3].split()
            if not all(map(_SCOPE.fullmatch, scopes)):
                problems.append(f"{path}:{number}: a scope has characters that no scope has")
                continue
            keys.append(_Key(bytes.fromhex(found[2]), Principal(found[1], scopes=frozenset(scopes))))
        if len(keys) > MAX_KEYS:
            raise UnusableFile(f"it has more than {MAX_KEYS} keys: use an authorization server, by --issuer")
        return cls(tuple(keys), tuple(problems))


class KeyedRequest(Protocol):
    """The part of a request that has the key."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Names in lower case."""


class ApiKeys:
    """The callers that a file of keys lets in: an ``authenticate`` for `HttpServerTransport` and WebSocket.

    A key is presented as ``Authorization: Bearer KEY``. It is compared with all keys of the file, each in constant
    time, by its digest. A key that is taken out of the file lets nobody in from a second later on; a stream that it has
    opened goes on. A line that is malformed costs its own key, and is logged. While the file cannot be read, nobody is
    let in.

    Args:
        path: The file.
        scopes: Scopes that every caller needs.
        clock: Returns seconds.

    Raises:
        ValueError: The file cannot be read, or no line of it has a key.
    """

    def __init__(
        self, path: str, scopes: Collection[str] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = path
        self._needed = frozenset(scopes)
        try:
            self._file = LookedAt([path], self._read, self._unusable, clock)
        except UnusableFile as error:
            raise ValueError(f"{path}: {error}") from error
        if not self._file.current().keys:
            problem = next(iter(self._file.current().problems), f"{path}: it has no key")
            raise ValueError(f"{problem}; mcp-actors config api-key SUBJECT makes one")
        responses: Any = importlib.import_module("mcp_transports.http.server.responses")
        challenge = (("WWW-Authenticate", "Bearer"),)
        self._unknown = responses.Refusal(
            401, "An API key is needed: Authorization: Bearer KEY.", headers=challenge
        )
        lacks = f'Bearer error="insufficient_scope", scope="{" ".join(sorted(self._needed))}"'
        self._lacking = responses.Refusal(
            403, "The API key lacks a scope that this needs.", headers=(("WWW-Authenticate", lacks),)
        )

    def __repr__(self) -> str:
        return f"<ApiKeys {self._path}>"

    def __call__(self, request: KeyedRequest) -> Any:
        """Returns the `Principal` that sent a request, or the refusal of it. Never waits."""
        try:
            credentials = read_credentials(request.headers.get("authorization"))
        except MalformedCredentials:
            return self._unknown
        if credentials is None or credentials.scheme != "Bearer":
            return self._unknown
        digest = hashlib.sha256(credentials.token.encode()).digest()
        found: Principal | None = None
        for key in self._file.current().keys:
            # All of them are compared, so that the time says nothing of the place of one.
            if hmac.compare_digest(key.digest, digest):
                found = key.principal
        if found is None:
            return self._unknown
        return found if self._needed <= found.scopes else self._lacking

    def _read(self) -> KeysFile:
        file = KeysFile.read(self._path)
        for problem in file.problems:
            log.error("a line of the API keys has no key", problem=problem)
        return file

    def _unusable(self, error: Exception, _former: KeysFile) -> KeysFile:
        log.error("the API keys cannot be read: nobody is let in", file=self._path, reason=str(error))
        return KeysFile(())


def new_key(subject: str, scopes: Collection[str]) -> tuple[str, str]:
    """Makes a key.

    Args:
        subject: Whose it is.
        scopes: What it may be used for.

    Returns:
        The key, and the line of it for the file.

    Raises:
        ValueError: The subject or a scope has a blank or another character that it cannot have.
    """
    if not subject or subject.startswith("#") or re.search(r"\s", subject) or not subject.isprintable():
        raise ValueError("SUBJECT is a name without blanks, such as ann or ci@example.org")
    if not all(map(_SCOPE.fullmatch, scopes)):
        raise ValueError("a scope has characters that no scope has")
    key = f"mcp_{secrets.token_urlsafe(32)}"
    line = " ".join([subject, f"sha256:{hashlib.sha256(key.encode()).hexdigest()}", *scopes])
    return key, line
