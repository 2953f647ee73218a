"""Settings for every test."""

from __future__ import annotations

import os

from hypothesis import settings

# No example has a time limit of its own: a busy machine is no bug. In CI every run tries the same examples.
settings.register_profile("house", deadline=None, derandomize=os.environ.get("CI") == "true")
settings.load_profile("house")
