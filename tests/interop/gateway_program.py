"""A gateway in front of one server, which it presents as itself: ``gateway_program.py ERA URL TARGET``."""

from __future__ import annotations

import sys

from mcp_actors.gateway import Gateway, Upstream

if __name__ == "__main__":
    era, url, target = sys.argv[1:]
    upstream = Upstream(name="behind", target=target, era=era, prefix="")
    Gateway([upstream], presents=True).run(url)
