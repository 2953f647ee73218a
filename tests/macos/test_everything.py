"""Every module is imported and every binding works in a process whose sockets and files fail as those of macOS do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.windows.pretended import ROOT

pytestmark = pytest.mark.slow
BINDINGS = ["tcp", "unix", "http", "ws", "http+unix", "stdio"]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    result = subprocess.run(
        [sys.executable, "-m", "tests.macos.everything", str(tmp_path_factory.mktemp("m"))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "failed" not in result.stderr
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


@pytest.mark.slow
def test_every_module_is_imported(found: dict[str, Any]) -> None:
    assert found["failures"] == {}


def test_the_process_looks_like_macos_and_waits_as_trio_does(found: dict[str, Any]) -> None:
    assert found["platform"] == ["darwin", True]


@pytest.mark.parametrize("binding", BINDINGS)
def test_a_binding_answers_all_that_it_is_asked(found: dict[str, Any], binding: str) -> None:
    assert found[binding] == [2_000, 2_000_000, 66, True]


def test_the_sockets_have_failed_as_those_of_macos_do(found: dict[str, Any]) -> None:
    counts = found["counts"]
    assert counts["gone_at_accept"] == 12
    assert counts["options_refused"] >= 6
    assert counts["asked_for_unsent"] >= 1


def test_no_description_of_linux_is_left(tmp_path: Path) -> None:
    """A process that stays behind in a group is looked for in ``/proc``, which is not there."""
    program = (
        "import sys; from tests.macos.like_macos import counts, pretend; pretend(['trio', 'pathlib'])\n"
        "from mcp_transports.stdio.starting import _has_running_member\n"
        "print(_has_running_member(1), counts.no_proc)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "True 1\n", done.stderr
