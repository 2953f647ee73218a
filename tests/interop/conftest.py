from __future__ import annotations

import os

import pytest

from .installation import InstallationFailed, Peers, install


@pytest.fixture(scope="session")
def peers() -> Peers:
    """The official SDKs, installed. Without a network the tests are skipped, except where they must count: in CI."""
    try:
        return install()
    except InstallationFailed as reason:
        if os.environ.get("CI", "").lower() in ("1", "true"):
            raise
        pytest.skip(f"the official SDKs could not be installed: {reason}")
