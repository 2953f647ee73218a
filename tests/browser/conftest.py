from __future__ import annotations

import pytest

from .chromium import find_browser


@pytest.fixture(scope="session")
def browser() -> str:
    """Chromium. A test that asks for it belongs to the run of ``pytest -m peers``."""
    found = find_browser()
    if found is None:
        pytest.fail("there is no Chromium; Debian has it as a package: apt-get install chromium")
    return found
