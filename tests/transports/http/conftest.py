"""What the tests of HTTP share."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
import structlog
import structlog.testing


@pytest.fixture
def logs() -> Iterator[list[MutableMapping[str, Any]]]:
    """What is logged during the test; nothing of it is rendered."""
    with structlog.testing.capture_logs() as captured:
        yield captured
    structlog.reset_defaults()
