"""Turns what a program asked a client to connect to into a server, a URL or a transport, or says what to write."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from mcp_actors._client.options import Access, Connectable, InProcessServer, Target
from mcp_actors.abc import ClientTransport
from mcp_actors.discovery import client_transport
from mcp_actors.platform.command_lines import join_words, split_line

__all__ = ["connectable", "shown"]


def connectable(target: Target, auth: Access | None = None) -> Connectable:
    """Returns the target as a `Server`, a URL or a transport: commands and paths become ``stdio:`` URLs.

    Raises:
        TypeError: The target is nothing to connect to, or ``auth`` is no authorization.
        ValueError: There is ``auth``, and the target is no URL of a binding that takes it; a command is empty, a path
            is no server's, or a URL is malformed.
        TransportNotFound: There is no binding for the URL.
    """
    if auth is not None:
        return _authorizable(target, auth)
    if isinstance(target, type):
        raise TypeError(f"{target.__name__} is a class: make an object of it for the Client")
    if isinstance(target, list | tuple):
        return _url_of_command(target)
    if isinstance(target, Path):
        return _url_of_path(target)
    if isinstance(target, str):
        client_transport(target)  # raises for a URL that cannot be used, at the line of whoever wrote it
        return target
    if isinstance(target, InProcessServer | ClientTransport):
        return target
    raise TypeError(_why_not(target))


def _authorizable(target: Target, auth: Access) -> str:
    """Returns the URL of a server that ``auth`` can give access to."""
    if isinstance(auth, type) or not isinstance(auth, Access):
        given = f"the class {auth.__name__}" if isinstance(auth, type) else type(auth).__name__
        raise TypeError(f"auth is OAuth(...) or BearerToken(...), not {given}")
    if not isinstance(target, str):
        raise ValueError(
            "auth= needs the URL of a server, http://…, https://…, ws://… or wss://…: a process takes credentials from "
            "its environment, a server in memory needs none, and a transport takes auth= itself, if it can"
        )
    if "@" in urlsplit(target).netloc:
        raise ValueError("auth= and a user in the URL would be two sets of credentials: give one of them")
    try:
        client_transport(target, auth=auth)
    except TypeError as error:
        raise ValueError(
            f"the binding for {target.partition(':')[0]!r} takes no auth=: http:, https:, ws: and wss: do, and a "
            "process takes credentials from its environment"
        ) from error
    return target


def shown(target: Connectable) -> str:
    """Returns the name of a target without what may hold secrets: arguments, and the credentials and query of a URL."""
    if not isinstance(target, str):
        return type(target).__name__
    scheme, _, command = target.partition(":")
    if scheme == "stdio":
        return f"stdio:{os.path.basename(split_line(command)[0])}"
    return re.sub("//[^/]*@", "//", re.split("[?#]", target, maxsplit=1)[0])


def _url_of_command(command: list[str] | tuple[str, ...]) -> str:
    if not command or not all(isinstance(word, str) for word in command):
        raise ValueError("a command is a list of strings, the program first: ['python', 'server.py']")
    return f"stdio:{join_words(command)}"


def _url_of_path(path: Path) -> str:
    if not path.is_file():
        raise ValueError(f"there is no file {str(path)!r} to start as a server")
    if path.suffix == ".py":
        return _url_of_command([sys.executable, str(path)])
    if not os.access(path, os.X_OK):
        raise ValueError(f"{str(path)!r} is neither a .py file nor executable: write the command as a list")
    return _url_of_command([str(path.absolute())])


def _why_not(target: object) -> str:
    if isinstance(target, Mapping):
        servers = target.get("mcpServers", target)
        names = ", ".join(map(repr, servers)) if isinstance(servers, Mapping) else ""
        return (
            f"a Client has one server, not a configuration of {names[:200] or 'servers'}: write "
            "Client([command, *args]), or Client(StdioClientTransport([command, *args], env={**os.environ, **env}))"
        )
    if hasattr(target, "serve"):
        return f"{type(target).__name__} can be served, not connected to"
    return (
        "a Client takes a Server object, a URL, a command as a list of strings, the pathlib.Path of a server file, "
        f"or a transport, not {type(target).__name__}"
    )
