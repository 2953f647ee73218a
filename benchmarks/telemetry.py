"""The cost of telemetry: processor time a call of a server with it, beside the same server without.

::

    python -m benchmarks.telemetry --rounds 20

All servers are there all the time and take turns in windows of a second, with 64 calls in flight over HTTP (modern) or
over one TCP connection (legacy). The processor time is that of the whole process, the exporting thread included.
``otel`` records each span and exports it by OTLP to a receiver, which is another process; ``otel-tenth`` samples a
tenth of the traces by the SDK. ``otel-serve`` is what ``mcp-actors serve --telemetry otel`` is: at most 20 traces a
second, and durations that are counted by `Metrics` and exported with the rest; ``otel-share`` has the traces of
``--share`` instead. ``otel-spans`` has no instruments for durations. ``history`` is ``--admin`` that nobody looks at:
`Metrics` that are read every ten seconds. ``access`` is ``--access-log``, and ``operators`` all three.
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.windows import Others, Window, processor_time, summary
from benchmarks.workers import META

PROGRAM = """
import os, sys, time
from mcp_actors import Server
kind, url, burnt, share = sys.argv[1:]
telemetry = None
if kind.startswith("otel"):
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.metrics import NoOpMeterProvider
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
    from mcp_actors.telemetry import Metrics
    from mcp_actors.telemetry.otel import OpenTelemetry
    from mcp_actors.telemetry.otel_exporting import MetricsExporter
    tracers = TracerProvider(sampler=ParentBasedTraceIdRatio(0.1 if kind == "otel-tenth" else 1.0))
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    meters = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter(), 5000)])
    if kind == "otel-spans":
        meters = NoOpMeterProvider()
    settings = {}
    if kind in ("otel-serve", "otel-share"):
        settings["metrics"] = metrics = Metrics()
        exporter = MetricsExporter(OTLPMetricExporter(), metrics)
        meters = MeterProvider([PeriodicExportingMetricReader(exporter, 5000)])
        settings |= {"most_traces": 20} if kind == "otel-serve" else {"share": float(share)}
    telemetry = OpenTelemetry(tracer_provider=tracers, meter_provider=meters, **settings)
elif kind in ("metrics", "history"):
    from mcp_actors.telemetry import Metrics
    telemetry = Metrics()
elif kind in ("access", "operators"):
    from mcp_actors.supervision.access_log import access_log
    from mcp_actors.telemetry import Metrics, Together
    from mcp_actors.telemetry.combined import AccessLog
    access_log.is_on = True
    telemetry = AccessLog() if kind == "access" else Together(Metrics(), AccessLog())
companions = []
if kind in ("history", "operators"):
    from mcp_transports.admin import AdminTransport
    companions.append(AdminTransport("unix:" + os.path.dirname(os.path.abspath(__file__)) + "/admin.sock"))
server = Server("measured", telemetry=telemetry)

@server.tool
async def add(a: int, b: int) -> int:
    end = time.thread_time() + float(burnt) / 1e6
    while time.thread_time() < end:
        pass
    return a + b

class Status:
    def started(self, places):
        print(places[0], flush=True)

server.run(url, *companions, task_status=Status())
os._exit(0)
"""
KINDS = (
    "none",
    "metrics",
    "history",
    "access",
    "operators",
    "otel-serve",
    "otel-share",
    "otel-tenth",
    "otel-spans",
    "otel",
)
IN_FLIGHT = 64
CALL = {"name": "add", "arguments": {"a": 1, "b": 2}}


class Receiver(http.server.BaseHTTPRequestHandler):
    """Takes what is exported, and throws it away."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        """Says nothing."""


class Http:
    """Calls over HTTP, one in flight on each of as many connections."""

    def __init__(self, place: str) -> None:
        port = int(place.rpartition(":")[2].split("/")[0])
        body = json.dumps(
            {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {**CALL, "_meta": META}}
        ).encode()
        head = (
            f"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
            "accept: application/json, text/event-stream\r\nmcp-protocol-version: 2026-07-28\r\n"
            f"mcp-method: tools/call\r\nmcp-name: add\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self._request = head.encode() + body
        self._connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(IN_FLIGHT)]

    def calls(self) -> int:
        """Makes as many calls as are in flight, and returns their number when all are answered."""
        for each in self._connections:
            each.sendall(self._request)
        for each in self._connections:
            answer = each.recv(65536)
            if not answer.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"an answer is not 200: {answer[:300]!r}")
        return IN_FLIGHT


class Tcp:
    """Calls over one connection, with as many in flight."""

    def __init__(self, place: str) -> None:
        host, port = place.removeprefix("tcp://").split(":")
        self._connection = socket.create_connection((host, int(port)))
        self._file = self._connection.makefile("rb")
        about = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "x", "version": "1"},
        }
        self._send({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": about})
        self._file.readline()
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        call = {"jsonrpc": "2.0", "method": "tools/call", "params": CALL}
        self._burst = b"".join(
            json.dumps({**call, "id": n}).encode() + b"\n" for n in range(1, IN_FLIGHT + 1)
        )

    def _send(self, message: dict[str, Any]) -> None:
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def calls(self) -> int:
        """As those of `Http`."""
        self._connection.sendall(self._burst)
        for _ in range(IN_FLIGHT):
            if b'"result"' not in self._file.readline():
                raise SystemExit("an answer is not a result")
        return IN_FLIGHT


BINDINGS: dict[str, tuple[str, Callable[[str], Http | Tcp]]] = {
    "http": ("http://127.0.0.1:0/mcp", Http),
    "tcp": ("tcp://127.0.0.1:0", Tcp),
}


@contextmanager
def serving(
    kind: str, binding: str, burnt: float, collector: str, share: float
) -> Iterator[tuple[int, Http | Tcp]]:
    url, load = BINDINGS[binding]
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "measured.py"
        program.write_text(PROGRAM)
        environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": collector}
        command = [sys.executable, str(program), kind, url, str(burnt), str(share)]
        # The access log is written, and read by nobody.
        errors = subprocess.DEVNULL if kind in ("access", "operators") else None
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        ) as process:
            try:
                assert process.stdout is not None
                yield process.pid, load(process.stdout.readline().strip())
            finally:
                process.send_signal(signal.SIGKILL)


def window(pid: int, load: Http | Tcp, seconds: float) -> Window:
    """Returns the microseconds of the server's processor time for each call in one window."""
    others, used, calls = Others([pid]), processor_time([pid]), 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        calls += load.calls()
    return Window((processor_time([pid]) - used) / calls * 1e6, others.share())


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--bindings", default="http,tcp")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--burnt", type=float, default=0.0, help="microseconds that the tool takes itself")
    parser.add_argument("--share", type=float, default=0.1, help="the share of the traces of otel-share")
    options = parser.parse_args(arguments)
    receiver = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    collector = f"http://127.0.0.1:{receiver.server_port}"
    kinds = options.kinds.split(",")
    for binding in options.bindings.split(","):
        with ExitStack() as stack:
            served = {
                kind: stack.enter_context(serving(kind, binding, options.burnt, collector, options.share))
                for kind in kinds
            }
            for pid, load in served.values():
                window(pid, load, options.seconds)
            rounds = [
                {kind: window(pid, load, options.seconds) for kind, (pid, load) in served.items()}
                for _ in range(options.rounds)
            ]
        for kind in kinds:
            windows = [each[kind] for each in rounds]
            ratio = statistics.median(each[kind].value / each[kinds[0]].value for each in rounds)
            # On a machine that others use, the least disturbed windows say most.
            least = [min(each[name].value for each in rounds) for name in (kind, kinds[0])]
            print(
                f"{binding} {kind:10} {ratio:.2f} x {kinds[0]} ({least[0] / least[1]:.2f} x by the least windows, "
                f"{least[0]:.0f} us); us a call: {summary(windows)}",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
