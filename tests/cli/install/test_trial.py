"""Whether a server starts as a client would start it."""

from __future__ import annotations

import sys

import pytest

from mcp_actors.cli.failures import CommandFailure
from mcp_actors.cli.install import install

SILENT = "import sys; print('I wait', file=sys.stderr); sys.stdin.read()"
CHATTY = """
import sys
for number in range(1000):
    print("line", number, file=sys.stderr)
sys.exit("no key")
"""


def tried(program: str) -> str:
    return install.try_out([sys.executable, "-c", program], {})


def test_a_server_that_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "TRIAL_TIMEOUT", 0.2)
    with pytest.raises(CommandFailure, match=r"did not answer within 0\.2 s .*nothing was changed"):
        tried(SILENT)


def test_what_a_server_wrote_last_is_shown() -> None:
    with pytest.raises(CommandFailure, match="does not start as a client starts it") as raised:
        tried(CHATTY)
    lines = raised.value.message.splitlines()
    assert lines[-2:] == ["line 999", "no key"]
    assert lines.count("no key") == 1
    assert len(lines) < 30


def test_a_program_that_is_not_there_is_said() -> None:
    with pytest.raises(CommandFailure, match="no-such-program"):
        install.try_out(["/no-such-program"], {})
