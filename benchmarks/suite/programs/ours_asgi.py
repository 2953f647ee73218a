"""This package under uvicorn, as a program mounts it: ``ours_asgi URL``."""

from __future__ import annotations

import sys
from urllib.parse import urlsplit

import uvicorn

from benchmarks.suite.programs.ours import server

if __name__ == "__main__":
    parts = urlsplit(sys.argv[1])
    assert parts.port is not None
    uvicorn.run(server.asgi(parts.path), port=parts.port, log_level="warning")
