"""``mcp-actors record`` and ``mock``: what a client and a server say to each other, written down and served again."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import click

from mcp_actors.abc import ClientTransport, FrameChannel
from mcp_actors.cli.connection_options import (
    ConfigurableCommand,
    ConnectionOptions,
    upstream_options,
)
from mcp_actors.cli.failures import WrongUsage, reported, traceback_option
from mcp_actors.cli.gateway import CONNECTION, serve_bridge, transport_of
from mcp_actors.cli.serve import serve_here
from mcp_actors.cli.serve_options import (
    ServeOptions,
    equip,
    options_of,
    require_fitting,
    sections_of,
    set_log,
)
from mcp_actors.gateway import UpstreamTarget, bridge_to
from mcp_actors.testing import MockServer, Recording, RecordingTransport

__all__ = ["command", "load_recording", "mock_command"]


@click.command(
    "record",
    cls=ConfigurableCommand,
    sections=(CONNECTION, *sections_of("bridge")),
    short_help="Serve a server at another address, and write down what is said.",
)
@upstream_options
@click.argument("file")
@click.argument("to", default="stdio:")
@options_of("bridge")
@traceback_option
def command(connection: ConnectionOptions, file: str, to: str, show_traceback: bool, **given: Any) -> None:
    """Serve a server at another address, and write down all messages to and from it.

    \b
    URL   the server: stdio:COMMAND ARG... as one word, or any scheme
    FILE  the recording, one JSON object a line; it is written anew
    TO    where it is served: stdio: by default, or a URL of any scheme

    \b
    mcp-actors record 'stdio:npx -y @modelcontextprotocol/server-everything' day.jsonl
    mcp-actors record https://example.org/mcp day.jsonl http://127.0.0.1:8000/mcp

    It is a bridge: put it between a client and a server. The file has arguments and results as they are, and only its
    owner may read it. Headers are not in it, and no access tokens.
    """
    with reported(show_traceback):
        _require_writable(file)

        def recorded(target: UpstreamTarget) -> UpstreamTarget:
            transport = RecordingTransport(_EachAnew(partial(transport_of, target)), file)
            return lambda: transport

        serve_bridge(connection, ServeOptions(listen=(to,), **given), "auto", recorded)


def _require_writable(file: str) -> None:
    """Makes the file, that only its owner may read."""
    try:
        handle = os.open(file, os.O_CREAT | os.O_WRONLY, 0o600)
    except OSError as error:
        raise click.FileError(file, error.strerror) from error
    os.close(handle)


class _EachAnew:
    """A transport whose connections are each made by a transport of their own, so that one recorder has them all."""

    def __init__(self, make: Callable[[], ClientTransport]) -> None:
        self._make = make

    def connect(self) -> AbstractAsyncContextManager[FrameChannel]:
        """Opens a connection, as a new transport does."""
        return self._make().connect()


# -- ``mcp-actors mock`` ---------------------------------------------------------------------------------


@click.command(
    "mock",
    cls=ConfigurableCommand,
    sections=sections_of("from-openapi"),
    short_help="Serve a recording, as the server that was recorded.",
)
@click.argument("file")
@options_of("from-openapi")
@traceback_option
def mock_command(file: str, show_traceback: bool, **given: Any) -> None:
    """Serve a recording: what was asked is answered as the server had answered, in both eras and over every binding.

    \b
    FILE  a recording of mcp-actors record

    \b
    mcp-actors mock day.jsonl --listen http://127.0.0.1:8000/mcp

    Requests are found again by their method and params, in any order. What was not recorded is an error of the
    protocol that says so. Nothing is asked of the server that was recorded.
    """
    options = ServeOptions(**given)
    with reported(show_traceback):
        recording = load_recording(file)
        require_fitting(options)
        set_log(options)
        mock = MockServer(recording)
        bridge = bridge_to(lambda: mock)
        equip(bridge, options)
        serve_here(bridge, options, None, f"a mock of {file}")


def load_recording(file: str) -> Recording:
    """Reads a recording.

    Raises:
        WrongUsage: There is none.
    """
    try:
        return Recording.load(file)
    except OSError as error:
        raise WrongUsage(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise WrongUsage(str(error)) from error
