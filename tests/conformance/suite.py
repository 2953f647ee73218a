"""Runs the official conformance suite and reads what it found.

The verdict is ours, and stricter than the suite's own: under a set of requirements the suite itself lets every warning
pass, and every failure of a scenario that it does not score.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interop.installation import Peers

__all__ = ["Outcome", "Suite"]

LIST_LIMIT = 120.0  # seconds; a list takes about one
RUN_LIMIT = 240.0  # seconds for all server scenarios of a revision; they take less than twenty
SHOWN = 4000  # characters of what a scenario wrote, in the report of a failure

# Comes with every scenario, also where nothing was said that could have been against the schema.
ALWAYS_THERE = "wire-schema-valid"

Check = dict[str, Any]


@dataclass
class Outcome:
    """What one scenario found. ``written`` is what was printed meanwhile."""

    scenario: str
    checks: list[Check]
    written: str = ""
    exit_code: int | None = None

    def with_status(self, *statuses: str) -> list[Check]:
        return [check for check in self.checks if check["status"] in statuses]

    @property
    def succeeded(self) -> set[str]:
        """The checks that say something about the scenario itself."""
        return {check["id"] for check in self.with_status("SUCCESS")} - {ALWAYS_THERE}

    def complaint(self, may_be_skipped: Collection[str] = ()) -> str:
        """Empty if all is well; else each bad check, in full.

        What was skipped is bad but for the names given, and so is a scenario in which nothing succeeded.
        """
        fine = self.with_status("SUCCESS", "INFO")
        fine += [check for check in self.with_status("SKIPPED") if check["name"] in may_be_skipped]
        lines = [f"{check['status']} {_told(check)}" for check in self.checks if check not in fine]
        if not self.succeeded:
            lines.append("no check succeeded")
        if self.exit_code:
            lines.append(f"exit code {self.exit_code}")
        if lines:
            lines = [self.scenario, *lines, self.written[-SHOWN:]]
        return "\n".join(lines)


def _told(check: Check) -> str:
    told = f"{check['id']}: {check['description']}"
    if check.get("errorMessage"):
        told += f"\n    {check['errorMessage']}"
    if check.get("details"):
        told += f"\n    {json.dumps(check['details'], ensure_ascii=False)[:SHOWN]}"
    return told


class Suite:
    """The installed suite. Results are written below ``directory``."""

    def __init__(self, peers: Peers, directory: Path) -> None:
        program = peers.package("@modelcontextprotocol/conformance") / "dist" / "index.js"
        self._command = [str(peers.node), str(program)]
        self._directory = directory

    def _run(self, limit: float, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._command, *arguments], capture_output=True, text=True, timeout=limit, check=False
        )

    def listed(self, revision: str) -> dict[str, set[str]]:
        """The names of all scenarios of a revision, scored or not: ``{"server": …, "client": …}``."""
        done = self._run(LIST_LIMIT, "list", "--requirements", revision)
        assert done.returncode == 0, done.stderr
        found: dict[str, set[str]] = {"server": set(), "client": set()}
        section = None
        for line in done.stdout.splitlines():
            heading = re.match(r"(Server|Client) scenarios ", line)
            scored = re.match(r"  - (\S+)$", line)
            unscored = re.match(r"    - (\S+) \[(server|client)\]$", line)
            if heading:
                section = heading[1].lower()
            elif unscored:
                found[unscored[2]].add(unscored[1])
            elif scored and section:
                found[section].add(scored[1])
        return found

    def all_listed(self) -> dict[str, dict[str, set[str]]]:
        """All scenarios, each with its revisions, or ``extension``: ``{"server": {name: …}, "client": …}``."""
        done = self._run(LIST_LIMIT, "list")
        assert done.returncode == 0, done.stderr
        found: dict[str, dict[str, set[str]]] = {}
        section: dict[str, set[str]] = {}
        for line in done.stdout.splitlines():
            if heading := re.match(r"(\S.*) scenarios \(", line):
                section = found.setdefault(heading[1].lower(), {})
            elif scenario := re.match(r"  - (\S+) \[(\S+)\]$", line):
                section[scenario[1]] = set(scenario[2].split(","))
        return found

    def of_extension(self, url: str, scenario: str, revision: str) -> Outcome:
        """Plays one scenario of an extension against a server."""
        directory = self._directory / f"extension-{revision}"
        done = self._run(
            RUN_LIMIT,
            "server",
            *("--url", url, "--scenario", scenario, "--spec-version", revision),
            "--force",  # the revision requires no extension
            *("--output-dir", str(directory)),
        )
        checks = _checks_below(directory, "server-").get(scenario, [])
        return Outcome(scenario, checks, done.stdout + done.stderr, done.returncode)

    def against_server(self, url: str, revision: str, *, is_required: bool = True) -> dict[str, Outcome]:
        """Plays every server scenario of a revision, one after the other, as the suite orders them.

        ``is_required=False`` is for a revision without a set of requirements.
        """
        directory = self._directory / f"server-{revision}"
        chosen = (
            ["--requirements", revision] if is_required else ["--suite", "all", "--spec-version", revision]
        )
        done = self._run(RUN_LIMIT, "server", "--url", url, *chosen, "--output-dir", str(directory))
        parts = re.split(r"^=== Running scenario: (\S+) ===$", done.stdout, flags=re.MULTILINE)
        written = dict(zip(parts[1::2], parts[2::2], strict=True))
        assert written, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        checks = _checks_below(directory, "server-")
        return {
            name: Outcome(name, checks.get(name, []), text + done.stderr) for name, text in written.items()
        }

    def against_client(self, command: list[str], scenario: str, revision: str) -> Outcome:
        """Plays one client scenario; the client's exit code counts where the suite lets it."""
        directory = self._directory / f"client-{revision}"
        done = self._run(
            RUN_LIMIT,
            "client",
            *("--command", " ".join(command)),
            *("--scenario", scenario),
            *("--spec-version", revision),
            "--force",  # what a revision requires is the requirements' affair, not the scenario's
            *("--output-dir", str(directory)),
        )
        checks = _checks_below(directory, "").get(scenario, [])
        return Outcome(scenario, checks, done.stdout + done.stderr, done.returncode)


def _checks_below(directory: Path, prefix: str) -> dict[str, list[Check]]:
    """The results are in one directory for each scenario, named for it and for the time of day."""
    found: dict[str, list[Check]] = {}
    for path in directory.rglob("checks.json"):
        name = str(path.parent.relative_to(directory)).removeprefix(prefix)
        found[re.sub(r"-\d{4}-\d\d-\d\dT[\d-]+Z$", "", name)] = json.loads(path.read_text())
    return found
