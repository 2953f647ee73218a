"""Every pair of our own client and server: binding, revision, how the revision was agreed, and feature."""

import pytest

pytest.register_assert_rewrite("tests.pairs.features")
