"""A collector of OpenTelemetry in this process: it takes OTLP over HTTP, or refuses it, or never answers."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

__all__ = ["Collector"]

KINDS = {1: "INTERNAL", 2: "SERVER", 3: "CLIENT"}


class Collector:
    """Listens on a free port while it is entered.

    ``spans`` has (service, id of the trace, id, id of the parent, name, kind, start) of each span that was taken, and
    ``metrics`` the names of metrics, and ``durations`` the points of histograms, by name. ``status`` is what it
    answers; while ``answers`` is not set it answers nothing.
    """

    def __init__(self, status: int = 200) -> None:
        self.spans: list[tuple[str, str, str, str, str, str, int]] = []
        self.metrics: set[str] = set()
        self.durations: dict[str, list[Any]] = {}
        self.status = status
        self.answers = threading.Event()
        self.answers.set()
        self.asked = threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["content-length"]))
                collector.asked.set()
                collector.answers.wait(60)
                if collector.status == 200:
                    collector.take(self.path, data)
                self.send_response(collector.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Collector:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.answers.set()
        self._server.shutdown()
        self._server.server_close()

    def take(self, path: str, data: bytes) -> None:
        if path == "/v1/metrics":
            for each in ExportMetricsServiceRequest.FromString(data).resource_metrics:
                for metric in (metric for scope in each.scope_metrics for metric in scope.metrics):
                    self.metrics.add(metric.name)
                    self.durations.setdefault(metric.name, []).extend(metric.histogram.data_points)
            return
        for resource in ExportTraceServiceRequest.FromString(data).resource_spans:
            attributes = {each.key: each.value.string_value for each in resource.resource.attributes}
            self.spans += [
                (
                    attributes["service.name"],
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.name,
                    KINDS[span.kind],
                    span.start_time_unix_nano,
                )
                for scope in resource.scope_spans
                for span in scope.spans
            ]
