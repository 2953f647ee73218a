"""One server of a configuration, and what a client connects to for it.

Variables are put into its texts when they are needed. ``${VAR}``, ``${VAR:-default}`` and ``${env:VAR}`` are those of
the environment, ``${input:ID}`` is one, too, and Visual Studio Code and Cursor have names for some places.
``${cmd:PROGRAM ARG}`` is the output of a command, which is run once. ``envFile`` names a file with ``NAME=VALUE`` in
each line. No value of a variable is shown anywhere.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal, NoReturn
from urllib.parse import quote, urlsplit

import attrs

from mcp_actors.abc import ClientTransport
from mcp_actors.abc.discovery import client_transport
from mcp_actors.errors import ConfigurationError, McpError, MissingVariable, TransportNotFound
from mcp_actors.server import Reshape
from mcp_actors.supervision.logging import write_to_stderr
from mcp_actors.supervision.platform import join_words, split_line

__all__ = [
    "COMMAND_TIMEOUT",
    "MAX_COMMAND_BYTES",
    "MAX_ENV_FILE_BYTES",
    "WITHIN",
    "WITH_HEADERS",
    "CommandOutputs",
    "ConfigSource",
    "Expansion",
    "GatewayMembers",
    "NotExpanded",
    "ServerEntry",
    "UnusableFile",
    "Variables",
    "commands_in",
    "input_variable",
    "read_env_file",
    "read_file",
]


# -- variables in texts ------------------------------------------------------------------------------------------------

# The files of the gateways that this process was started by, for those that it starts: a gateway that is one of its own
# servers would start processes for ever.
WITHIN = "MCP_ACTORS_WITHIN"
_EXPRESSION = re.compile(r"\$\{([^{}]*)\}|\$\{")
# Windows has names such as ProgramFiles(x86).
_VARIABLE = re.compile(r"(?:env:)?([A-Za-z_][\w().]*)(?::-(.*))?", re.DOTALL)
_INPUT = re.compile(r"input:([\w.-]+)")
_COMMAND = "cmd:"
_KNOWN = (
    "known are ${VAR}, ${VAR:-default}, ${env:VAR}, ${cmd:PROGRAM ARG}, ${input:ID}, ${userHome} and"
    " ${workspaceFolder}"
)
# Seconds that a command may take: the agent of a password store may have to ask a person for its key.
COMMAND_TIMEOUT = 30.0
# Bytes of the output of a command, far more than any key or token has.
MAX_COMMAND_BYTES = 64 * 1024


class NotExpanded(Exception):
    """A text has something between ``${`` and ``}`` that has no value. The message shows no value.

    Args:
        problem: A clause that says what is wrong, and what to write.
        variable: The environment variable that is not set, if that is what is wrong.
    """

    def __init__(self, problem: str, variable: str | None = None) -> None:
        super().__init__(problem)
        self.variable = variable


class CommandOutputs:
    """The outputs of the commands of one configuration, each of which is run once, when its output is first needed."""

    def __init__(self) -> None:
        self._found: dict[str, str | NotExpanded] = {}

    def __repr__(self) -> str:
        # The outputs are secrets.
        return f"<CommandOutputs {len(self._found)}>"

    def of(self, line: str) -> str:
        """Returns what a command has written to its standard output, without the line breaks at its end.

        The first call for a line runs it and waits for it, `COMMAND_TIMEOUT` seconds at most. No shell is asked, the
        command reads nothing, and what it writes to its standard error is dropped: that may have a secret too.

        Args:
            line: The program and its arguments.

        Raises:
            NotExpanded: It cannot be started, fails, takes too long, or writes too much or what is not UTF-8. Later
                calls raise the same.
        """
        if line not in self._found:
            try:
                self._found[line] = _output_of(line)
            except NotExpanded as problem:
                self._found[line] = problem
        found = self._found[line]
        if isinstance(found, NotExpanded):
            raise NotExpanded(str(found))
        return found


def _output_of(line: str) -> str:
    try:
        words = split_line(line)
    except ValueError:
        raise NotExpanded("the command of ${cmd:...} has a quotation mark without another one") from None
    if not words:
        raise NotExpanded("${cmd:} has no command: write ${cmd:PROGRAM ARG}")
    # Its arguments may be secrets.
    name = os.path.basename(words[0])
    try:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it has a NUL character"
        raise NotExpanded(f"the command {name} cannot be run ({reason})") from None
    # A thread, because a pipe cannot be waited for with a time limit on every system.
    output: list[bytes] = []
    reader = threading.Thread(target=_read_all, args=(process.stdout, output), daemon=True)
    reader.start()
    reader.join(COMMAND_TIMEOUT)
    if output and len(output[0]) <= MAX_COMMAND_BYTES:
        try:
            return _text_of(name, output[0], process.wait(COMMAND_TIMEOUT))
        except subprocess.TimeoutExpired:
            output.clear()
    process.kill()
    process.wait()
    much = (
        f"writes more than {MAX_COMMAND_BYTES} bytes" if output else f"takes more than {COMMAND_TIMEOUT:g} s"
    )
    raise NotExpanded(f"the command {name} {much}")


def _read_all(pipe: IO[bytes], output: list[bytes]) -> None:
    with pipe:
        output.append(pipe.read(MAX_COMMAND_BYTES + 1))


def _text_of(name: str, output: bytes, code: int) -> str:
    if code != 0:
        raise NotExpanded(
            f"the command {name} has failed with exit code {code}; nothing that it writes is shown: run it to see why"
        )
    try:
        return output.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise NotExpanded(f"the output of the command {name} is not UTF-8") from None


def input_variable(name: str) -> str:
    """Returns the environment variable that has the value of an input: ``INPUT_API_KEY`` for ``api-key``."""
    return "INPUT_" + re.sub(r"\W", "_", name).upper()


def commands_in(text: str) -> list[str]:
    """Returns the commands that a text wants the output of."""
    found = (each[1] for each in _EXPRESSION.finditer(text))
    return [each.removeprefix(_COMMAND) for each in found if each is not None and each.startswith(_COMMAND)]


@attrs.frozen(repr=False)
class Variables:
    """The values that are put in for ``${...}`` in the texts of one configuration."""

    environ: Mapping[str, str]
    commands: CommandOutputs
    folder: Path | None = None
    """The folder of the configuration, ``None`` if it has none."""
    inputs: Mapping[str, str | None] = attrs.field(factory=dict)
    """The inputs that the configuration declares, with their defaults."""

    def expand(self, text: str) -> str:
        """Returns a text with the values of its variables.

        Raises:
            NotExpanded: A variable is not set, a command has no output, or there is something else between ``${`` and
                ``}``.
        """
        return _EXPRESSION.sub(lambda found: self._value(found[1]), text)

    def _value(self, expression: str | None) -> str:
        if expression is None:
            raise NotExpanded("a ${ has no }, or stands inside of another one")
        if expression.startswith(_COMMAND):
            return self.commands.of(expression.removeprefix(_COMMAND))
        if expression in _PLACES:
            if self.folder is None and expression.startswith("workspace"):
                raise NotExpanded(f"${{{expression}}} is known only in a file")
            return _PLACES[expression](self.folder or Path())
        if found := _INPUT.fullmatch(expression):
            return self._input(found[1])
        if not (found := _VARIABLE.fullmatch(expression)):
            # What follows the first word may be a secret.
            word = re.match(r"[\w:.-]{0,32}", expression.partition(":-")[0])
            raise NotExpanded(f"'${{{word[0] if word else ''}' cannot be expanded; {_KNOWN}")
        name, default = found.groups()
        value = self.environ.get(name, default)
        if value is None:
            raise NotExpanded(
                f"the environment variable {name} is not set; set it, or write ${{{name}:-default}}", name
            )
        return value

    def _input(self, name: str) -> str:
        variable = input_variable(name)
        value = self.environ.get(variable, self.inputs.get(name))
        if value is None:
            raise NotExpanded(
                f"nobody is asked for the input {name!r}; set the environment variable {variable}", variable
            )
        return value


@attrs.frozen
class ConfigSource:
    """The origin of a configuration."""

    name: str
    """The file, or words for something else, for errors."""
    folder: Path | None = None
    """The folder that relative paths begin at: that of the file, or of the project whose settings it has."""
    inputs: Mapping[str, str | None] = attrs.field(factory=dict, repr=False)
    """The inputs that the file declares, with their defaults."""
    commands: CommandOutputs = attrs.field(factory=CommandOutputs, repr=False, eq=False)
    """What its commands have written."""


@attrs.frozen(repr=False)
class Expansion:
    """Expands the texts of one entry."""

    source: ConfigSource
    server: str
    environ: Mapping[str, str]

    def of(self, text: str, member: str) -> str:
        """Returns a text with the values of its variables.

        Args:
            text: What the configuration has.
            member: Where it has it, for errors.

        Raises:
            MissingVariable: A variable is not set.
            ConfigurationError: A command has no output, or there is something else between ``${`` and ``}``.
        """
        source = self.source
        try:
            return Variables(self.environ, source.commands, source.folder, source.inputs).expand(text)
        except NotExpanded as problem:
            where = {"file": source.name, "server": self.server, "member": member}
            if problem.variable is not None:
                raise MissingVariable(problem.variable, str(problem), **where) from None
            raise ConfigurationError(str(problem), **where) from None

    def path(self, text: str, member: str) -> str:
        """Returns a path: ``~`` is the folder of the user, and a relative one begins at the configuration's folder.

        Raises:
            ConfigurationError: As `of`.
        """
        path = os.path.expanduser(self.of(text, member))
        return path if self.source.folder is None else str(self.source.folder / path)

    def fail(self, problem: str, member: str) -> NoReturn:
        """Raises `ConfigurationError` for a member of the entry."""
        raise ConfigurationError(problem, file=self.source.name, server=self.server, member=member)


_PLACES: Mapping[str, Callable[[Path], str]] = {
    "userHome": lambda _folder: os.path.expanduser("~"),
    "workspaceFolder": str,
    "workspaceFolderBasename": lambda folder: folder.name,
    "pathSeparator": lambda _folder: os.sep,
    "/": lambda _folder: os.sep,
}
"""The predefined variables of Visual Studio Code and Cursor, by the folder of the project."""


# -- files of variables ------------------------------------------------------------------------------------------------

# Bytes: far more than the environment of a process has room for.
MAX_ENV_FILE_BYTES = 1024 * 1024

_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][\w.]*)\s*=\s*(.*)", re.DOTALL)
_QUOTED = re.compile(r"""(?:"(?P<double>(?:[^"\\]|\\.)*+)"|'(?P<single>[^']*+)')\s*(?:#.*)?""", re.DOTALL)
_COMMENT = re.compile(r"(?:^|\s)#")
_ESCAPE = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


class UnusableFile(Exception):
    """The file cannot be read. The message says why, and shows nothing of it."""


def read_file(path: str | os.PathLike[str], most: int) -> str:
    """Returns the text of a file.

    Args:
        path: The file.
        most: The bytes that it may have.

    Raises:
        UnusableFile: It does not exist, cannot be read, is longer, or is not UTF-8.
    """
    try:
        # A pipe would be waited for.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise UnusableFile("it is no file")
        with open(path, "rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise UnusableFile(f"it cannot be read ({error.strerror})") from error
    except ValueError:
        raise UnusableFile("it is no name of a file") from None
    if len(data) > most:
        raise UnusableFile(f"it has more than {most} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnusableFile(f"it is not UTF-8 (byte {error.start})") from None


def read_env_file(path: str | os.PathLike[str]) -> dict[str, str]:
    """Returns the variables of a file. Lines may begin with ``export``, and have comments; values may be in quotes.

    Raises:
        UnusableFile: It cannot be read, or has another line.
    """
    variables: dict[str, str] = {}
    for number, line in enumerate(read_file(path, MAX_ENV_FILE_BYTES).splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        found = _LINE.fullmatch(stripped)
        value = None if found is None or "\0" in stripped else _value(found[2])
        if found is None or value is None:
            raise UnusableFile(f"line {number} is no NAME=VALUE")
        variables[found[1]] = value
    return variables


def _value(text: str) -> str | None:
    """Returns the value of a text, ``None`` if a quotation mark has no second one."""
    if not text.startswith(('"', "'")):
        return _COMMENT.split(text, maxsplit=1)[0].rstrip()
    quoted = _QUOTED.fullmatch(text)
    if quoted is None:
        return None
    if quoted["single"] is not None:
        return quoted["single"]
    return _ESCAPE.sub(lambda escape: _ESCAPES.get(escape[1], escape[1]), quoted["double"])


# -- entries -----------------------------------------------------------------------------------------------------------

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
    tools: Mapping[str, Reshape] | None = None
    sessions: Literal["auto", "shared", "own"] | None = None
    lazy: bool | None = None
    era: str | None = None
    timeout: float | None = None
    cap: float | None = None
    wait: float | None = None
    arguments: Literal["as-is", "repair"] | None = None
    inline_refs: bool | None = None
    scopes: Sequence[str] | None = None
    confirm: Sequence[str] | None = None
    idempotent: Mapping[str, timedelta] | None = None

    def given(self) -> dict[str, Any]:
        """Returns those that the entry has."""
        return {name: value for name, value in attrs.asdict(self, recurse=False).items() if value is not None}


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

    def command_outputs(self) -> Mapping[str, str | None]:
        """Runs each command whose output the entry wants, unless it has run already, and waits for it.

        Returns:
            Their outputs, which are secrets, by the commands; ``None`` for one that has failed, which connecting to the
            server will report.
        """
        texts = [self.command, self.url, self.env_file, self.cwd, *self.args]
        texts += [*self.env.values(), *self.headers.values()]
        found: dict[str, str | None] = {}
        for line in (line for text in texts if text is not None for line in commands_in(text)):
            try:
                found[line] = self.source.commands.of(line)
            except NotExpanded:
                found[line] = None
        return found

    def file_variables(self) -> Mapping[str, str] | None:
        """Reads the file of variables.

        Returns:
            What it has, which are secrets; ``None`` without a file, and for one that cannot be read, which connecting
            to the server will report.
        """
        if self.env_file is None:
            return None
        try:
            return read_env_file(self._expansion(None).path(self.env_file, "envFile"))
        except (ConfigurationError, UnusableFile):
            return None

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
            ConfigurationError: The binding does not take what the entry has, or its file of variables cannot be used.
            TransportNotFound: No binding is installed for the scheme of the URL.
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
        env: dict[str, str | None] = {name: os.environ[name] for name in (WITHIN,) if name in os.environ}
        if self.env_file is not None:
            path = expansion.path(self.env_file, "envFile")
            try:
                env |= read_env_file(path)
            except UnusableFile as error:
                expansion.fail(f"{path}: {error}", "envFile")
        for name, value in self.env.items():
            env[name] = None if value is None else expansion.of(value, f"env.{name}")
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
