"""What the tests of HTTP share."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
import structlog
import structlog.testing

from mcp_transports.http.client import client_transport, post


@pytest.fixture
def logs() -> Iterator[list[MutableMapping[str, Any]]]:
    """What is logged during the test; nothing of it is rendered."""
    with structlog.testing.capture_logs() as captured:
        yield captured
    structlog.reset_defaults()


@pytest.fixture
def connections_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has a client close no connection because a busy machine needed a second for the end of a stream, or four for the
    next request."""
    monkeypatch.setattr(post, "LINGER", 60)
    monkeypatch.setattr(client_transport, "KEEPALIVE_EXPIRY", 60)
