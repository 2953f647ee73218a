"""Reads and writes ``tcp:`` and ``unix:`` URLs."""

from __future__ import annotations

from urllib.parse import quote, unquote, urlsplit

import attrs

from mcp_actors.errors import LocalProtocolError

__all__ = ["TcpAddress", "parse_tcp", "parse_unix", "unix_url"]


@attrs.frozen
class TcpAddress:
    """Host and port; the host without brackets, ``None`` for loopback."""

    host: str | None
    port: int

    def url(self, port: int | None = None) -> str:
        """Returns the URL, with ``port``, the one that is really listened at, if that is known."""
        host = self.host or "localhost"
        return f"tcp://{f'[{host}]' if ':' in host else host}:{self.port if port is None else port}"


def parse_tcp(url: str) -> TcpAddress:
    """Reads ``tcp://HOST:PORT``; no host means loopback. Raises `LocalProtocolError` for anything else."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise LocalProtocolError(f"{url!r}: {error}") from error
    if parts.scheme != "tcp" or parts.username is not None or parts.path or parts.query or parts.fragment:
        raise LocalProtocolError(f"a TCP address is written tcp://HOST:PORT and nothing more, not {url!r}")
    if port is None:
        raise LocalProtocolError(
            f"{url!r} says no port: tcp://HOST:PORT, to listen also with 0 for any free one"
        )
    return TcpAddress(host or None, port)


def parse_unix(url: str) -> str:
    """Returns the path in ``unix:///absolute/path`` or ``unix:relative/path``, or the abstract name in ``unix:@name``.

    Percent-encoding is decoded. An abstract name begins with NUL, as the system expects it.

    Raises:
        LocalProtocolError: the URL has another form.
    """
    scheme, _, rest = url.partition(":")
    if scheme.lower() != "unix":
        raise LocalProtocolError(f"a Unix socket is written unix:///PATH, not {url!r}")
    if rest.startswith("//"):
        rest = rest[2:]
        if not rest.startswith(("/", "@", "%2F", "%2f")):
            raise LocalProtocolError(
                f"{url!r}: write unix:///{rest} for an absolute path, unix:{rest} for a relative one"
            )
    path = unquote(rest)
    if not path or "\0" in path:
        raise LocalProtocolError(
            f"{url!r} names no socket: write unix:///PATH, unix:RELATIVE/PATH or unix:@NAME"
        )
    return f"\0{path[1:]}" if rest.startswith("@") else path


def unix_url(path: str) -> str:
    """Returns the URL that `parse_unix` reads as ``path``."""
    if path.startswith("\0"):
        return f"unix:@{quote(path[1:])}"
    shown = quote(path, safe="/")
    return f"unix://{shown}" if path.startswith("/") else f"unix:{shown}"
