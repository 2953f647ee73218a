"""Hostile peers of gateways and extensions, hostile recordings, and a server that is replaced under load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from mcp_actors.abc import Frame
from mcp_actors.testing import RecordedServer, Recording, play_to_server
from mcp_transports.memory import MemoryTransport

# -- recordings that nobody recorded -----------------------------------------------------------------------------------

HEAD = b'{"recording": 1}\n'
OPENED = b'{"t": 0.0, "connection": 1, "event": "opened", "side": "client"}\n'
SENT = b'{"t": 0.0, "connection": 1, "event": "sent", "text": "{}"}\n'


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[]\n",
        b'{"recording": 2}\n',
        b'{"recording": "1"}\n',
        b'{"recording": [[[[',
        b'{"recording"}\n',
        b'{"recording"' + b"[" * 100_000 + b"\n",
        HEAD + b"null\n",
        HEAD + b"5\n",
        HEAD + b"[]\n",
        HEAD + b"{}\n",
        HEAD + b"\n",
        HEAD + b"[" * 100_000 + b"\n",
        HEAD + b'{"t": 0}\n',
        HEAD + b'{"t": "0", "connection": 1, "event": "opened", "side": "client"}\n',
        HEAD + b'{"t": 0, "connection": "1", "event": "opened", "side": "client"}\n',
        HEAD + b'{"t": 0, "connection": 1, "event": "opened", "side": "both"}\n',
        HEAD + b'{"t": 0, "connection": 1, "event": "opened"}\n',
        HEAD + b'{"t": 0, "connection": 1, "event": "exec", "side": "client"}\n',
        HEAD + OPENED + b'{"t": 0, "connection": 1, "event": "sent", "text": 5}\n',
        HEAD + OPENED + b'{"t": 0, "connection": 1, "event": "sent", "text": null}\n',
        HEAD + OPENED + b'{"t": 0, "connection": 1, "event": "sent", "base64": "*"}\n',
        HEAD + OPENED + b'{"t": 0, "connection": 1, "event": "sent", "base64": 5}\n',
        HEAD + OPENED + b'{"t": 0, "connection": 1, "event": "sent", "text": "{}", "request": {}}\n',
        HEAD + OPENED + b'{"t": 0, "connection": 1, "event": "sent", "text": "{}", "metadata": 5}\n',
        HEAD + OPENED + b'{"t": 0, "connection": 1, "event": "sent", "text": "\\ud800"}\n',
    ],
)
def test_what_is_no_recording_is_refused_as_documented(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "tape").write_bytes(data)
    with pytest.raises(ValueError, match=r"."):
        Recording.load(tmp_path / "tape")


FRAMES = (
    "[" * 100_000,
    '{"id":' + "[" * 100_000,
    '{"id": 1e999, "result": {}}',
    '{"id": {}, "result": []}',
    '{"id": "\ud800"}',
    "1" * 10_000,
    '{"jsonrpc": "2.0", "id": true, "error": 5}',
    "NaN",
    '"' + "x" * 1_000_000 + '"',
)


@pytest.mark.parametrize("text", FRAMES, ids=range(len(FRAMES)))
@pytest.mark.parametrize("side", ["client", "server"])
async def test_frames_of_any_content_are_played_and_compared(
    text: str, side: str, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """A peer may send these, and then they are in the recording."""
    frame = {"t": 0, "connection": 1, "event": "sent", "text": text.encode("utf-8", "replace").decode()}
    lines = [{"recording": 1}, {**json.loads(OPENED), "side": side}, frame, {**frame, "event": "received"}]
    (tmp_path / "tape").write_text("".join(json.dumps(each) + "\n" for each in lines))
    recording = Recording.load(tmp_path / "tape")
    data = frame["text"].encode()  # type: ignore[attr-defined]
    if side == "client":
        transport = MemoryTransport()

        async def echo(channel: Any, principal: Any = None) -> None:
            await channel.send(await channel.receive())

        async with trio.open_nursery() as nursery:
            await nursery.start(transport.serve, echo)
            report = await play_to_server(recording, transport)
            nursery.cancel_scope.cancel()
    else:
        recorded = RecordedServer(recording)
        async with recorded.connect() as channel:
            await channel.receive()
            await channel.send(Frame(data))
            await trio.testing.wait_all_tasks_blocked()
        (report,) = recorded.reports
    assert report.same, str(report)[:200]
