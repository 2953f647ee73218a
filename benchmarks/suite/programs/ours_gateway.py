"""This package's gateway of one server: ``ours_gateway URL UPSTREAM``; ``UPSTREAM`` is JSON, a URL or a command."""

from __future__ import annotations

import json
import sys

from mcp_actors.gateway import Gateway, Upstream

if __name__ == "__main__":
    Gateway([Upstream(name="hop", target=json.loads(sys.argv[2]), prefix="")]).run(sys.argv[1])
