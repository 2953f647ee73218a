"""The address of Redis: that of one server, of the primary of Sentinels, or of the one of a Cluster that has the keys.

A connection is made to one server at a time, whichever form the URL has. With Sentinels and in a Cluster, that server
is looked for again before each connection, because another one may have taken its place.
"""

from __future__ import annotations

import ssl
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, unquote, urlencode, urlsplit

import attrs
import trio
from coredis.connection import BaseConnection, Location, TCPConnection, TCPLocation
from coredis.exceptions import AuthenticationFailureError, AuthenticationRequiredError
from coredis.pool import ConnectionPool

from mcp_actors.supervision.containment import start, start_and_wait
from mcp_actors.supervision.task_kinds import STORE_CONNECTION

__all__ = ["SCHEMES", "Redis", "Settings", "reason_of", "run_connection", "slot_of"]

_PLAIN = ("redis", "rediss", "unix")
SCHEMES = (
    *_PLAIN,
    *(f"{scheme}+{kind}" for kind in ("sentinel", "cluster") for scheme in ("redis", "rediss")),
)
"""What a URL of Redis may begin with."""
_SENTINEL_PORT, _PORT = 26379, 6379
_SLOTS = 16384
# Servers that are asked where the primary is; those beyond it are not looked at.
_MAX_ASKED = 64
# Options of a URL that are read here; the others are those of coredis.
_OF_SENTINELS = {"sentinel_username", "sentinel_password_file"}
_OWN = {"password_file", *_OF_SENTINELS}
# Bytes that are read of a file with a password.
_MAX_PASSWORD = 4096


# What to do, before what was said by the server, or by TLS.
_HINTS: tuple[tuple[type[BaseException], str], ...] = (
    (AuthenticationRequiredError, "redis needs a password, for example with ?password_file=PATH"),
    (AuthenticationFailureError, "redis does not take this user with this password"),
    (
        ssl.SSLCertVerificationError,
        "the certificate is not from an authority of the system or of ?ssl_ca_certs=PATH",
    ),
)


def _slots_of_bytes() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        crc = byte << 8
        for _ in range(8):
            crc = (crc << 1 ^ 0x1021) & 0xFFFF if crc & 0x8000 else crc << 1
        table.append(crc)
    return tuple(table)


_CRC16 = _slots_of_bytes()


def slot_of(key: str) -> int:
    """Returns the hash slot of a key in a Redis Cluster: of its hash tag, if it has one."""
    _, opened, rest = key.partition("{")
    tag, closed, _ = rest.partition("}")
    crc = 0
    for byte in (tag if opened and closed and tag else key).encode():
        crc = (crc << 8 & 0xFFFF) ^ _CRC16[(crc >> 8) ^ byte]
    return crc % _SLOTS


def _password_of(path: str) -> str:
    with Path(path).open("rb") as file:
        data = file.read(_MAX_PASSWORD + 1)
    password = data.decode().strip("\r\n")
    if not password or len(data) > _MAX_PASSWORD or "\n" in password:
        raise ValueError(f"{path} has to have one line, the password")
    return password


@attrs.frozen
class Settings:
    """The values with which connections are made."""

    make: Callable[..., BaseConnection]
    location: Location | None
    """The server of a URL that names one."""
    kwargs: dict[str, Any] = attrs.field(repr=False)


@attrs.frozen
class Redis:
    """The address of a Redis server, and the settings of connections to it. Its password is never shown."""

    url: str = attrs.field(repr=False)
    timeout: float
    """Seconds for which a connection, and each answer, is waited for."""
    _learned: dict[TCPLocation, None] = attrs.field(factory=dict, init=False, repr=False, eq=False)
    """The servers of a Cluster that were seen last: those of the URL may be gone."""

    _read: list[ConnectionPool[Any]] = attrs.field(factory=list, init=False, repr=False, eq=False)

    @property
    def place(self) -> str:
        """The URL without its name, password and query."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{unquote(parts.path)}"

    @property
    def is_cluster(self) -> bool:
        """Whether keys have to be in one slot to be used together."""
        return urlsplit(self.url).scheme.endswith("+cluster")

    @property
    def is_looked_for(self) -> bool:
        """Whether the server is another one at times, so that one that only copies another is not the one."""
        return "+" in urlsplit(self.url).scheme

    def _hosts(self) -> list[TCPLocation]:
        default = _PORT if self.is_cluster else _SENTINEL_PORT
        found = []
        for each in urlsplit(self.url).netloc.rpartition("@")[2].split(","):
            parts = urlsplit(f"//{each}")
            if not parts.hostname:
                raise ValueError(f"{each!r} is not a host with a port")
            found.append(TCPLocation(unquote(parts.hostname), parts.port or default))
        if len(found) > _MAX_ASKED:
            raise ValueError(f"it has more than {_MAX_ASKED} hosts")
        return found

    @property
    def _primary(self) -> tuple[str, str]:
        """The name that Sentinels know, and the database; a Cluster has neither."""
        name, _, database = urlsplit(self.url).path.strip("/").partition("/")
        return unquote(name), database

    def _single(self) -> str:
        """Returns the URL of one server: with its TLS verified where the URL does not say otherwise itself."""
        parts = urlsplit(self.url)
        scheme = parts.scheme.partition("+")[0]
        query = [each for each in parse_qsl(parts.query, keep_blank_values=True) if each[0] not in _OWN]
        if scheme == "rediss":
            given = parse_qs(parts.query)
            if "ssl_cert_reqs" not in given:
                query.append(("ssl_cert_reqs", "required"))
            # No name can be checked in a certificate that is not.
            if "ssl_check_hostname" not in given and given.get("ssl_cert_reqs") != ["none"]:
                query.append(("ssl_check_hostname", "true"))
        host, path = parts.netloc.rpartition("@")[2], parts.path
        if self.is_looked_for:
            host, path = "host", "" if self.is_cluster else f"/{self._primary[1]}"
        user = parts.netloc.rpartition("@")[0]
        netloc = f"{user}@{host}" if user else host
        return parts._replace(scheme=scheme, netloc=netloc, path=path, query=urlencode(query)).geturl()

    def _option(self, name: str) -> str | None:
        return parse_qs(urlsplit(self.url).query).get(name, [None])[0]

    def settings(self, name: str) -> Settings:
        """Returns the settings of connections, which Redis shows to its operator by a name; nothing is connected.

        Raises:
            OSError: A file that the URL names cannot be read.
            ValueError: The file with the password has none.
        """
        if not self._read:
            # Certificates are read once: reading the authorities of a system takes a while.
            pool = ConnectionPool.from_url(
                self._single(), decode_components=True, connect_timeout=self.timeout
            )
            self._read.append(pool)
        (pool,) = self._read
        kwargs = {**pool.connection_kwargs, "client_name": name}
        path = self._option("password_file")
        if path is not None:
            kwargs["password"] = _password_of(path)
        return Settings(pool.connection_class, pool.location, kwargs)

    def check(self) -> None:
        """Reads the URL as connections will.

        Raises:
            ValueError: It names no server, or has a port, a database or an option that cannot be.
        """
        parts = urlsplit(self.url)
        by_path = parts.scheme == "unix"
        kind = parts.scheme.partition("+")[2]
        rest = {"sentinel": "HOST[:PORT],…/NAME[/DATABASE]", "cluster": "HOST[:PORT],…"}.get(kind)
        form = f"{parts.scheme}://{'/PATH' if by_path else rest or 'HOST[:PORT][/DATABASE]'}"
        try:
            path = parts.path.strip("/")
            if by_path and not path:
                raise ValueError("it names no path")
            if not by_path and not parts.netloc.rpartition("@")[2]:
                raise ValueError("it names no host")
            if kind:
                self._hosts()
            if kind == "cluster" and path.strip("0"):
                raise ValueError("a cluster has the database 0 only")
            if kind == "sentinel" and not self._primary[0]:
                raise ValueError("it does not name the primary, as the Sentinels call it")
            database = self._primary[1] if kind == "sentinel" else "" if by_path or kind else path
            # coredis would take the first database for one that is not a number.
            if not (database or "0").isdecimal():
                raise ValueError("a database is a number")
            if self._option("password_file") is not None and parts.password:
                raise ValueError("it has a password and a password_file; leave one of them out")
            if kind != "sentinel" and _OF_SENTINELS & {*parse_qs(parts.query)}:
                raise ValueError("sentinel_username and sentinel_password_file are for redis+sentinel://")
            for option in ("password_file", "sentinel_password_file"):
                file = self._option(option)
                if file is not None:
                    _password_of(file)
            self.settings("")
        except KeyError as error:
            raise ValueError(f"a URL of Redis is {form}; of this one an option cannot be {error}") from None
        except (ValueError, OSError) as error:
            raise ValueError(f"a URL of Redis is {form}; of this one: {error}") from None

    async def locate(self, settings: Settings, key: str) -> Location:
        """Returns where to connect to.

        Args:
            settings: Those of the connection that is to be made.
            key: A key that the server is to have.

        Raises:
            OSError: There is no such server at the moment, or none that says where it is.
        """
        if not self.is_looked_for:
            location = settings.location
            if location is None or not await location.check():
                raise OSError("nothing listens there, or the name of the host is unknown")
            return location
        found = await (self._ask_cluster(settings, key) if self.is_cluster else self._ask_sentinels(settings))
        if not await found.check():
            raise OSError(f"{found} is the primary, and nothing listens there")
        return found

    async def _ask_sentinels(self, settings: Settings) -> TCPLocation:
        name = self._primary[0]
        path = self._option("sentinel_password_file")
        credentials = {
            "username": self._option("sentinel_username"),
            "password": None if path is None else _password_of(path),
        }
        kwargs = {**settings.kwargs, **credentials, "db": None}

        def read(asked: TCPLocation, answer: Any) -> TCPLocation | None:
            return None if answer is None else TCPLocation(answer[0].decode(), int(answer[1]))

        found = await self._most_say(
            self._hosts(), kwargs, (b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", name.encode()), read, "sentinels"
        )
        if found is None:
            raise OSError(f"the sentinels know no primary of the name {name!r}")
        return found

    async def _ask_cluster(self, settings: Settings, key: str) -> TCPLocation:
        slot = slot_of(key)
        nodes: dict[TCPLocation, None] = {}

        def read(asked: TCPLocation, answer: Any) -> TCPLocation | None:
            owner = None
            for first, last, *servers in answer:
                # One without a name has the name by which it was asked.
                here = [
                    TCPLocation(host.decode() if host else asked.host, int(port))
                    for host, port, *_ in servers
                    if host != b"?"
                ]
                nodes.update(dict.fromkeys(here))
                if first <= slot <= last and here:
                    owner = here[0]
            return owner

        servers = list(dict.fromkeys([*self._hosts(), *self._learned]))[:_MAX_ASKED]
        kwargs = settings.kwargs
        found = await self._most_say(servers, kwargs, (b"CLUSTER", b"SLOTS"), read, "servers of the cluster")
        if found is None:
            raise OSError(f"no server of the cluster has the slot {slot}")
        self._learned.clear()
        self._learned.update(nodes)
        return found

    async def _most_say(
        self,
        asked: list[TCPLocation],
        kwargs: Any,
        question: tuple[bytes, ...],
        read: Callable[[TCPLocation, Any], TCPLocation | None],
        who: str,
    ) -> TCPLocation | None:
        """Returns what most of those say that answer: one that is cut off from the others may be wrong.

        Raises:
            OSError: None answers in half the timeout.
        """
        said: list[TCPLocation | None] = []
        failures: list[str] = []
        half = len(asked) / 2
        with trio.move_on_after(self.timeout / 2):
            async with trio.open_nursery() as nursery:

                async def ask(location: TCPLocation) -> None:
                    try:
                        said.append(read(location, await _asked(location, kwargs, question)))
                    except Exception as error:
                        failures.append(f"{location}: {reason_of(error)}")
                    if said and _most(said)[1] > half:
                        nursery.cancel_scope.cancel()

                for location in asked:
                    start(nursery, STORE_CONNECTION, ask, location, about=f"asks {location}")
        if not said:
            reason = "; ".join(failures[:3]) or f"no answer within {self.timeout / 2:g} s"
            raise OSError(f"none of the {len(asked)} {who} answers: {reason}")
        return _most(said)[0]


def _most(said: Iterable[TCPLocation | None]) -> tuple[TCPLocation | None, int]:
    return Counter(said).most_common(1)[0]


async def _asked(location: TCPLocation, kwargs: Any, question: tuple[bytes, ...]) -> Any:
    if not await location.check():
        raise OSError("nothing listens there")
    command, *arguments = question
    async with trio.open_nursery() as nursery:
        connection: BaseConnection = TCPConnection(location, **kwargs)
        await start_and_wait(nursery, STORE_CONNECTION, run_connection, connection, about=str(location))
        answer = await connection.create_request(command, *arguments, decode=False)
        connection.invalidate("it was asked once")
    return answer


async def run_connection(connection: BaseConnection, *, task_status: trio.TaskStatus[None]) -> None:
    """Runs a connection until it is lost, and closes what coredis leaves open where none could be made."""
    try:
        await connection.run(task_status=task_status)
    finally:
        for name in ("_write_buffer", "_push_message_buffer", "_streamed_message_buffer"):
            for end in ("in", "out"):
                getattr(connection, f"{name}_{end}").close()


def reason_of(error: BaseException) -> str:
    """Returns an error in a few words, for the log."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    cause = error.__cause__
    said = f"{error or type(error).__name__}{f': {cause}' if cause is not None else ''}"[:300]
    each: BaseException | None = error
    while each is not None:
        hint = next((hint for kind, hint in _HINTS if isinstance(each, kind)), None)
        if hint is not None:
            return f"{hint}: {said}"
        each = each.__cause__
    return said
