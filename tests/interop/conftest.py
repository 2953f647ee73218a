from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from .installation import InstallationFailed, Peers, install
from .servers import reachable


@pytest.fixture(scope="session")
def peers() -> Peers:
    """The official SDKs, installed. Without a network the tests are skipped, except where they must count: in CI."""
    try:
        return install()
    except InstallationFailed as reason:
        if os.environ.get("CI", "").lower() in ("1", "true"):
            raise
        pytest.skip(f"the official SDKs could not be installed: {reason}")


@pytest.fixture(scope="module")
def target(request: pytest.FixtureRequest, peers: Peers) -> Iterator[str]:
    """What our client is given to reach the server named by the parameter: (a key of ``SERVERS``, a binding).

    Over stdio each client starts a process of its own; behind a URL one process serves the whole module.
    """
    server, binding = request.param
    with reachable(peers, server, binding) as endpoint:
        yield endpoint.target
