"""Hooks of telemetry that fail, or are written carelessly, cost neither calls nor lines of the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from structlog.testing import capture_logs

from mcp_actors import Client, Server
from mcp_actors.abc.telemetry import CallEnding, Observation, ObservedRequest, OutboundObservation, Telemetry
from mcp_actors.supervision.logging import log
from mcp_actors.telemetry import Metrics, Together

from .recorder import Recorder


class Speechless(Observation):
    def log_members(self) -> Mapping[str, Any]:
        raise RuntimeError("no words")


class SpeechlessTelemetry(Telemetry):
    def inbound(self, request: ObservedRequest) -> Observation:
        return Speechless()


class WithoutMeta(OutboundObservation):
    """Has an initializer of its own, and leaves that of its class out."""

    def __init__(self, ended: list[str]) -> None:
        self.endings = ended

    def ended(self, ending: CallEnding) -> None:
        self.endings.append(ending.kind)


class Careless(Telemetry):
    """Returns what `made` makes, for requests of this side."""

    def __init__(self, made: OutboundObservation) -> None:
        self._made = made

    def outbound(self, request: ObservedRequest) -> OutboundObservation:
        return self._made


def serving(telemetry: Telemetry | None = None) -> Server:
    server = Server("failing hooks", telemetry=telemetry)

    @server.tool
    async def say() -> str:
        log.warning("said")
        return "ok"

    return server


async def test_a_line_is_written_without_the_members_of_an_observer_that_fails() -> None:
    several = Together(SpeechlessTelemetry(), Recorder())
    for telemetry, trace in ((SpeechlessTelemetry(), None), (several, "a-trace")):
        with capture_logs() as lines:
            async with Client(serving(telemetry)) as client:
                await client.call_tool("say")
        (line,) = (each for each in lines if each["event"] == "said")
        assert line["session"]
        assert line.get("trace_id") == trace
        # The failure is no line of its own: to write that, the observer would be asked again.
        assert not [each for each in lines if each["event"] == "telemetry failed"]


async def test_a_request_is_sent_without_members_that_are_none() -> None:
    ended: list[str] = []
    odd = OutboundObservation([("a", "b")])  # type: ignore[arg-type]
    for made in (WithoutMeta(ended), odd):
        async with Client(serving(), telemetry=Careless(made)) as client:
            assert (await client.call_tool("say")).content
    assert set(ended) == {"answered"}


async def test_a_server_that_is_served_twice_is_counted_once() -> None:
    metrics = Metrics()
    server = serving(metrics)
    async with Client(server) as one, Client(server) as other:
        await one.ping()
        await other.ping()
        assert "\nmcp_actors_sessions 2\n" in metrics.text()
    assert "mcp_actors_sessions " not in metrics.text()
