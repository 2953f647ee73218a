from __future__ import annotations

import pytest
from interop.installation import Peers

from .suite import Suite


@pytest.fixture(scope="session")
def suite(peers: Peers, tmp_path_factory: pytest.TempPathFactory) -> Suite:
    """The official suite, installed beside the official SDKs."""
    return Suite(peers, tmp_path_factory.mktemp("conformance"))
