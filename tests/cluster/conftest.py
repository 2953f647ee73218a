from __future__ import annotations

import pytest
from interop.installation import Peers, install


@pytest.fixture(scope="session")
def peers() -> Peers:
    """The official SDKs, installed. A test that asks for them belongs to the run of ``pytest -m peers``."""
    return install()
