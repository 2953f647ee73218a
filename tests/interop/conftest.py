from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest

from .installation import InstallationFailed, Peers, install
from .servers import Endpoint, reachable


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
def reached(peers: Peers) -> Iterator[Callable[[str, str], Endpoint]]:
    """Starts a server with a URL once for a module, when it is first asked for."""
    with ExitStack() as stack:
        yield cache(lambda server, binding: stack.enter_context(reachable(peers, server, binding)))


@pytest.fixture
def target(request: pytest.FixtureRequest, reached: Callable[[str, str], Endpoint]) -> str:
    """What our client is given to reach the server named by the parameter: (a key of ``SERVERS``, a binding).

    Over stdio each client starts a process of its own.
    """
    return reached(*request.param).target
