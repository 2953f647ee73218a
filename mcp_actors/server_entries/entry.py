"""One server of a configuration, and what a client connects to for it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal
from urllib.parse import quote, urlsplit

import attrs

from mcp_actors.abc import ClientTransport
from mcp_actors.discovery import client_transport
from mcp_actors.errors import ConfigurationError, McpError, TransportNotFound
from mcp_actors.logging import write_to_stderr
from mcp_actors.platform.command_lines import join_words
from mcp_actors.server_entries.env_file import UnusableFile, read_env_file
from mcp_actors.server_entries.expansion import ConfigSource, Expansion

__all__ = ["WITH_HEADERS", "GatewayMembers", "ServerEntry"]

WITH_HEADERS = frozenset({"http", "https", "http+unix", "ws", "wss"})
"""The schemes whose requests, or whose opening, have headers."""
# RFC 9110 sections 5.1 and 5.5; what is not ASCII means something else to each server.
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HOST_AND_PORT = re.compile(r"[\w.-]+:\d")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")


@attrs.frozen(kw_only=True)
class GatewayMembers:
    """The members of an entry that are for a gateway; ``None`` where it has none. `Upstream` says what each means."""

    prefix: str | None = None
    rename: Mapping[str, str] | None = None
    include: Sequence[str] | None = None
    exclude: Sequence[str] | None = None
    sessions: Literal["auto", "shared", "own"] | None = None
    lazy: bool | None = None
    era: str | None = None
    timeout: float | None = None
    cap: float | None = None
    scopes: Sequence[str] | None = None

    def given(self) -> dict[str, Any]:
        """Returns those that the entry has."""
        return {name: value for name, value in attrs.asdict(self).items() if value is not None}


@attrs.frozen(kw_only=True, repr=False)
class ServerEntry:
    """A server as a configuration has it: a command or a URL. Its texts are expanded by `target`, each time."""

    name: str
    source: ConfigSource
    command: str | None = None
    args: Sequence[str] = ()
    env: Mapping[str, str | None] = attrs.field(factory=dict)
    """Beside the variables of this process; ``None`` takes one of those away."""
    env_file: str | None = None
    cwd: str | None = None
    url: str | None = None
    headers: Mapping[str, str] = attrs.field(factory=dict)
    disabled: bool = False
    gateway: GatewayMembers = attrs.field(factory=GatewayMembers)
    unknown: Sequence[str] = ()
    """The names of the members that have no effect here."""

    def __repr__(self) -> str:
        # Arguments, paths and queries may hold secrets.
        place = os.path.basename(self.command) if self.command is not None else _host(self.url or "")
        return f"<ServerEntry {self.name} {place}{' disabled' if self.disabled else ''}>"

    @property
    def takes_auth(self) -> bool:
        """Whether `target` may be given ``auth``: it has a URL of HTTP or WebSocket, and no credentials of its own."""
        return (
            self.url is not None
            and _scheme(self.url) in WITH_HEADERS
            and "authorization" not in map(str.lower, self.headers)
            and "@" not in self.url.partition("://")[2].partition("/")[0]
        )

    def address(self, *, environ: Mapping[str, str] | None = None) -> str | None:
        """Returns the URL with its variables, which may be secrets; ``None`` for a server that is a command.

        Args:
            environ: As for `target`.

        Raises:
            MissingVariable: It names a variable that is not set.
            ConfigurationError: It has something else that cannot be expanded.
        """
        return None if self.url is None else self._url(self._expansion(environ))

    def _url(self, expansion: Expansion) -> str:
        # What a program has written into a variable often ends in a newline.
        return expansion.of(self.url or "", "url").strip()

    def _expansion(self, environ: Mapping[str, str] | None) -> Expansion:
        return Expansion(self.source, self.name, os.environ if environ is None else environ)

    def target(self, *, environ: Mapping[str, str] | None = None, **options: Any) -> str | ClientTransport:
        """Returns what a `Client` connects to, made anew; nothing is started or opened.

        What a child process writes to its stderr is written to ours, behind the name of the server.

        Args:
            environ: The variables that the texts of the entry name, and that a child process is given; by default those
                of this process, as they are now.
            options: More options of the transport, such as ``stderr`` of one that starts a process, or ``auth`` where
                `takes_auth`.

        Raises:
            MissingVariable: The entry names a variable that is not set.
            ConfigurationError: The binding does not take what the entry has, or its file of variables is none.
            TransportNotFound: There is no binding for the scheme of the URL.
        """
        expansion = self._expansion(environ)
        if self.command is not None:
            url, given, member = self._command(self.command, expansion), self._process(expansion), "command"
        else:
            url, given, member = self._url(expansion), self._headers(expansion), "url"
        if member == "url" and not given and not options:
            # The era that is found at a URL is remembered for it.
            self._transport(url, {}, expansion, member)
            return url
        return self._transport(url, given | options, expansion, member)

    def _transport(
        self, url: str, options: dict[str, Any], expansion: Expansion, member: str
    ) -> ClientTransport:
        # What bindings say may have parts of the URL, and so secrets: it is not even chained.
        scheme = _scheme(url)
        found: object = None
        try:
            return client_transport(url, **options)
        except (ValueError, TypeError, McpError) as error:
            found = type(error)
        if found is TransportNotFound:
            words = _no_scheme(url) or f"no transport is installed for {scheme!r}"
            raise TransportNotFound(f"{self.source.name}, server {self.name[:80]!r}, {member}: {words}")
        if found is TypeError:
            problem = f"the binding for {scheme!r} does not take all of: {', '.join(sorted(options))}"
        else:
            lacks = "it, or one of its headers" if options else "it"
            problem = _malformed(url) or f"the binding for {scheme!r} does not take {lacks}"
        raise ConfigurationError(problem, file=self.source.name, server=self.name, member=member)

    def _command(self, command: str, expansion: Expansion) -> str:
        words = [os.path.expanduser(expansion.of(command, "command"))]
        words += [expansion.of(word, f"args[{at}]") for at, word in enumerate(self.args)]
        if not words[0] or any("\0" in word for word in words):
            expansion.fail("it is empty, or has a NUL character", "command")
        return f"stdio:{join_words(words)}"

    def _process(self, expansion: Expansion) -> dict[str, Any]:
        env = dict(expansion.environ)
        if self.env_file is not None:
            path = expansion.path(self.env_file, "envFile")
            try:
                env |= read_env_file(path)
            except UnusableFile as error:
                expansion.fail(f"{path}: {error}", "envFile")
        for name, value in self.env.items():
            if value is None:
                env.pop(name, None)
            else:
                env[name] = expansion.of(value, f"env.{name}")
        options: dict[str, Any] = {"env": env, "stderr": partial(_write_line, self.name)}
        if self.cwd is not None:
            options["cwd"] = expansion.path(self.cwd, "cwd")
        return options

    def _headers(self, expansion: Expansion) -> dict[str, Any]:
        headers: dict[str, str] = {}
        for name, text in self.headers.items():
            member = f"headers.{name}"
            value = expansion.of(text, member).strip()
            if not _HEADER_NAME.fullmatch(name):
                expansion.fail("it is no name of a header", member)
            if not _HEADER_VALUE.fullmatch(value):
                expansion.fail("its value has a character that no header can have", member)
            headers[name] = value
        return {"headers": headers} if headers else {}


def _write_line(name: str, line: str) -> None:
    write_to_stderr(f"{name}: {line}")


def _scheme(url: str) -> str:
    scheme, colon, _ = url.partition(":")
    return scheme.lower()[:32] if colon else ""


def _no_scheme(url: str) -> str | None:
    """Returns what to write in place of a URL without a scheme, ``None`` if it has one."""
    if _HOST_AND_PORT.match(url):
        return "it has no scheme: write http:// before it, or the scheme of another binding"
    return None if _scheme(url) else "it is no URL: write scheme://..., such as http://HOST:PORT/PATH"


def _malformed(url: str) -> str | None:
    """Returns what is wrong with a URL of any binding, ``None`` if that cannot be seen. Nothing of it is shown."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return "its port is no number from 0 to 65535, or it has a bracket without the other one"
    if _scheme(url) in WITH_HEADERS and not parts.hostname:
        return "it names no host: write scheme://HOST:PORT/PATH"
    return None


def _host(url: str) -> str:
    """Returns a URL without what may hold secrets: its scheme and host."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        host = ""
    return f"{_scheme(url)}://{host}"


def over_unix_socket(url: str) -> str:
    """Returns the URL of HTTP over a Unix socket, which Visual Studio Code writes as ``unix:///PATH#/mcp``."""
    path, _, endpoint = url.partition("://")[2].partition("#")
    return f"http+unix://{quote(path, safe='')}{endpoint or '/'}"
