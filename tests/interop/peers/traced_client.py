"""The official Python client in a program that traces: it calls the tool ``hop`` once, below a span of its own.

Usage: traced_client.py SITE_PACKAGES COLLECTOR legacy|auto URL

Runs in an environment of its own that has the package ``mcp`` and the API of OpenTelemetry. The SDK and the exporter
are those of SITE_PACKAGES, which is looked into last.
"""

from __future__ import annotations

import importlib
import sys

import anyio
from mcp import Client
from mcp.client.streamable_http import streamable_http_client


async def main(collector: str, mode: str, url: str) -> None:
    sdk = importlib.import_module("opentelemetry.sdk.trace")
    export = importlib.import_module("opentelemetry.sdk.trace.export")
    otlp = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    resources = importlib.import_module("opentelemetry.sdk.resources")
    trace = importlib.import_module("opentelemetry.trace")
    tracers = sdk.TracerProvider(resource=resources.Resource({"service.name": "official-client"}))
    tracers.add_span_processor(export.BatchSpanProcessor(otlp.OTLPSpanExporter(f"{collector}/v1/traces")))
    trace.set_tracer_provider(tracers)
    async with Client(streamable_http_client(url), mode=mode, read_timeout_seconds=120) as client:
        with trace.get_tracer("the program").start_as_current_span("a person's question"):
            result = await client.call_tool("hop", {})
    print(result.content[0].text)
    tracers.shutdown()


if __name__ == "__main__":
    sys.path.append(sys.argv[1])
    anyio.run(main, *sys.argv[2:])
