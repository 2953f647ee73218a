"""Every feature of the official list is on a page, with a program that has both sides and is run in both eras.

The list is that of SEP-1730: ``tier-audit/references/feature-list.md`` of the conformance suite.
``python -m tests.test_features`` writes the table of ``docs/reference/features.md`` again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import mcp_actors
from tests.pages import PAGES, ROOT, files_beside, outputs

SECONDS = 60
LAUNCHER = Path(__file__).parent / "program_in_era.py"
HOW_TO = [name for page, text in PAGES.items() if page.startswith("how-to/") for name in outputs(text)]


def run_in_a_session(name: str, folder: Path) -> tuple[str, set[str]]:
    """Returns what a program prints whose clients speak the legacy era, and the methods that it has sent."""
    for file, text in files_beside(name):
        (folder / file).write_text(text)
    methods = folder / "methods"
    packages = [str(Path(mcp_actors.__file__).parent.parent), str(ROOT / "transports")]
    environment = {
        **os.environ,
        "PATH": str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(packages),
        "PYTHONWARNINGS": "error",
        "METHODS": str(methods),
    }
    done = subprocess.run(
        ["python", str(LAUNCHER), "legacy", str(folder / name)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, set(methods.read_text().split())


@pytest.mark.parametrize("name", HOW_TO)
def test_the_program_prints_the_same_in_a_session(name: str, tmp_path: Path) -> None:
    printed, _ = run_in_a_session(name, tmp_path)
    assert printed == outputs()[name]
