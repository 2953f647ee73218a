from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest

from .installation import Peers
from .servers import Endpoint, reachable


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
