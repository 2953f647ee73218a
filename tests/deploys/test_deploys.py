"""Deployments that no official client notices: no failed call, no lost event, no session that begins anew.

``MCP_ACTORS_DEPLOYS`` makes it so many deployments of each arrangement, and ``MCP_ACTORS_DEPLOY_CALLS`` the longest
call another number of seconds. Without the first, it is one deployment of each of two arrangements.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from interop.installation import Peers

from .rig import ARRANGEMENTS, run

DEPLOYS = int(os.environ.get("MCP_ACTORS_DEPLOYS", "1"))
LONGEST = float(os.environ.get("MCP_ACTORS_DEPLOY_CALLS", "2"))
TRIED = tuple(ARRANGEMENTS) if "MCP_ACTORS_DEPLOYS" in os.environ else ("haproxy", "workers")
STATELESS = {"python-v2-modern", "typescript-v2-modern"}
pytestmark = [pytest.mark.peers, pytest.mark.long]


@pytest.mark.parametrize("arrangement", TRIED)
def test_no_client_notices_a_deployment(arrangement: str, peers: Peers, tmp_path: Path) -> None:
    reports = run(peers, arrangement, tmp_path, DEPLOYS, LONGEST)
    for name, report in reports.items():
        assert report["failed"] == [], name
        assert report["progress"]["came"] == report["progress"]["due"], name
        changes = report["changes"]
        assert changes["came"] + changes["refetched"] == changes["due"], name
        assert name in STATELESS or changes["refetched"] == 0
        assert report["begun"] == (0 if name in STATELESS else 1), name
