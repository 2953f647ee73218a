"""Runs what `.ci/windows` checks, several processes at a time, and counts what became of each test.

The table `windows.toml` has the files of tests in batches, each of which is one process with a bound on its time, and
the limits of Wine. Beside these tests there are two folders with checks of whole programs: those in ``inside`` are run
by CPython for Windows, and those in ``between`` by that of Linux, which starts programs of Windows.

With arguments, which are files or folders of tests, only these run.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from environment import Environment, NotMade, in_wine, make, update
from limits import REPORT, SECTIONS, table
from processes import run

HERE = Path(__file__).parent
AT_ONCE = 3
"""Processes: two that work, and one of those that wait for programs which they have started."""
LIMIT = float(os.environ.get("LIMIT", "1200")) / 2
"""Seconds for a batch: several times what one takes, and short enough that the other ones are heard too."""
WHOLE_PROGRAMS = ("between", "inside")
# The last lines of what a failed test said.
_WHY = 25


@dataclass
class Batch:
    """The tests of one process, and what its report says."""

    name: str
    files: Sequence[str]
    seconds: float = 0.0
    outcomes: dict[str, tuple[str, str]] = field(default_factory=dict)
    """What became of a test, and why, by its id."""

    def read(self, report: Path, code: int | None, output: str) -> None:
        """Takes the report of a process that has ended.

        Args:
            report: the file.
            code: its exit code, None if it was ended.
            output: what it printed.
        """
        lines = report.read_text(encoding="utf-8").splitlines() if report.exists() else []
        began, ended = None, False
        for line in map(json.loads, lines):
            began = line.get("began", began)
            ended |= "ended" in line
            # A test that has passed may still fail in its teardown, and a failure stays one.
            if "test" in line and self.outcomes.get(line["test"], ("",))[0] != "failed":
                self.outcomes[line["test"]] = line["outcome"], line["why"]
        if not ended or code not in (0, 1):
            how = f"did not end within {LIMIT:g} s" if code is None else f"ended with {code}"
            last = "\n".join(output.splitlines()[-_WHY:])
            self.outcomes[f"{self.name}: the process"] = "failed", f"it {how}, in {began}\n{last}"
        for file in self.files:
            if not any(name.startswith(file) for name in self.outcomes):
                self.outcomes[file] = "failed", "no test of it has run"


def batches(chosen: Sequence[str]) -> list[Batch]:
    """Returns what is to run, roughly the longest first."""
    if chosen:
        return [Batch("chosen", chosen)]
    programs = [
        Batch(str(path.relative_to(HERE)), [path.relative_to(HERE).as_posix()])
        for folder in WHOLE_PROGRAMS
        for path in sorted((HERE / folder).glob("test_*.py"))
    ]
    return [*programs, *(Batch(name, files) for name, files in table()["batches"].items())]


def perform(batch: Batch, environment: Environment) -> Batch:
    """Runs a batch to its end."""
    here = environment.project / ".ci" / "on_windows"
    report = environment.home / "reports" / f"{batch.name.replace('/', '-')}.jsonl"
    report.unlink(missing_ok=True)
    folder = batch.files[0].partition("/")[0]
    words = ["-m", "pytest", "-p", "limits", "-q", "--timeout=300", *batch.files]
    if folder not in WHOLE_PROGRAMS:
        words += [
            "-p",
            "no:cacheprovider",
            "-p",
            "no:asyncio",
            "-m",
            "not peers",
            "--strict-markers",
            "-o",
            "addopts=",
        ]
    command: list[str | Path]
    if folder == "between":
        command = [environment.linux_python, *words]
        path = os.pathsep.join(map(str, (here, environment.project)))
        variables = {**os.environ, REPORT: str(report), "WINDOWS_HOME": str(environment.home)}
    else:
        command = ["wine", environment.python, *words]
        path = in_wine(here)
        variables = environment.variables(
            **{REPORT: in_wine(report), "WINDOWS_HOME": in_wine(environment.home)}
        )
    variables |= {"PYTHONPATH": path, "CI": "true"}
    cwd = here if folder in WHOLE_PROGRAMS else environment.project
    finished = run(command, limit=LIMIT, env=variables, cwd=cwd)
    batch.seconds = finished.seconds
    batch.read(report, finished.code, finished.output)
    return batch


@contextmanager
def services(environment: Environment) -> Iterator[None]:
    """Has the services of Wine run for the length of the block, and ends all processes of Wine with it."""
    variables = environment.variables()
    try:
        run(["wineserver", "--persistent"], limit=60, env=variables)
        run(["wine", "cmd", "/c", "exit"], limit=60, env=variables)
        yield
    finally:
        run(["wineserver", "--kill"], limit=60, env=variables)


def unused(outcomes: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    """Yields the tests of the table that were not there."""
    names = {*outcomes, *(name.partition("[")[0] for name in outcomes)}
    for section in SECTIONS:
        yield from (name for name in table().get(section, {}) if name not in names)


def show(done: Sequence[Batch], complete: bool) -> bool:
    """Prints what became of the tests, and returns whether none has failed."""
    outcomes: dict[str, tuple[str, str]] = {}
    for batch in done:
        counted = Counter(outcome for outcome, _ in batch.outcomes.values())
        print(f"{batch.name:40} {batch.seconds:5.0f} s  {dict(counted)}")
        outcomes |= batch.outcomes
    if complete:
        outcomes |= dict.fromkeys(unused(outcomes), ("failed", "the table names it, and it was not there"))
    for kind in ("skipped", *SECTIONS, "failed"):
        for name, (outcome, why) in sorted(outcomes.items()):
            if outcome == kind:
                print(f"\n{kind}: {name}\n    " + "\n    ".join(why.strip().splitlines()[-_WHY:]))
    counted = Counter(outcome for outcome, _ in outcomes.values())
    limits = ", ".join(f"{counted[section]} {title}" for section, title in SECTIONS.items())
    print(f"\n{counted['passed']} passed, {counted['skipped']} skipped, {limits}, {counted['failed']} failed")
    return counted["failed"] == 0 and counted["passed"] > 0


def main(chosen: Sequence[str]) -> int:
    # The bound on everything ends this process by a signal, and Wine must not go on then.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = time.monotonic()
    try:
        environment = make()
        update(environment)
    except NotMade as error:
        print(f"the environment: {error}", file=sys.stderr)
        return 2
    print(f"the environment is ready: {time.monotonic() - began:.0f} s", flush=True)
    (environment.home / "reports").mkdir(exist_ok=True)
    began = time.monotonic()
    with services(environment), ThreadPoolExecutor(AT_ONCE) as threads:
        done = list(threads.map(lambda batch: perform(batch, environment), batches(chosen)))
    good = show(done, complete=not chosen)
    print(f"{time.monotonic() - began:.0f} s for the checks")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
