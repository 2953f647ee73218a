"""The git program, run so that neither a client nor the repository decides what it does.

- Every name that came from outside is first turned into an object id by ``rev-parse --verify --end-of-options``;
  only ids, and values glued to their option (``--author=…``), reach the other commands.
- The environment is made here: no system configuration, pager, prompt, lazy download or variable such as ``GIT_DIR``
  of whoever started the server. External diffs, text conversion, signature checks and the file-system monitor, all of
  which the repository's own configuration could turn into programs, are off.
- Output and time are bounded, also for a repository of any size.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from mcp_actors.errors import ToolError

MAX_SECONDS = 30  # for one run, waiting for its turn included
MAX_OUTPUT_BYTES = 1_000_000  # what a model can use is less; the rest is not read and git is stopped
MAX_RUNS = 8  # of git at once; further ones wait for their turn
MAX_NAME_CHARACTERS = 1_000  # of a branch, a path, a date, an author

_CONFIGURATION = {
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.pager": "cat",
    "core.quotePath": "false",
    "diff.external": "",
    "log.showSignature": "false",
    "protocol.allow": "never",
}
_OBJECT_ID = re.compile(rb"[0-9a-f]{40,64}\n")
# What a diff looks like must not depend on anybody's configuration, nor start a program.
PLAIN_DIFF = (
    "--no-color",
    "--no-ext-diff",
    "--no-textconv",
    "--submodule=short",
    "--src-prefix=a/",
    "--dst-prefix=b/",
)


class GitFailed(ToolError):
    """Git said no; the text has its words."""


class NoSuchRevision(ToolError):
    """The repository has no commit, branch, tag or file of that name."""


@dataclass(frozen=True)
class Output:
    """The output of a run of git, cut at `MAX_OUTPUT_BYTES`."""

    data: bytes
    truncated: bool

    @property
    def text(self) -> str:
        """As text; bytes that are no UTF-8 are replaced."""
        text = self.data.decode("utf-8", "replace")
        return f"{text}\n[cut after {len(self.data)} bytes]\n" if self.truncated else text


class Repository:
    """The repository that ``directory`` belongs to.

    Raises `ValueError`, with a text for people, if git cannot work with it.
    """

    def __init__(self, directory: Path) -> None:
        if not directory.is_dir():
            raise ValueError(f"there is no directory {str(directory)!r}")
        program = shutil.which("git")
        if program is None:
            raise ValueError("the git program is not installed, or not on PATH")
        self.directory = directory.resolve()
        self._command = [program, "--no-pager", "--literal-pathspecs", "-C", str(self.directory)]
        self._command += [part for key, value in _CONFIGURATION.items() for part in ("-c", f"{key}={value}")]
        self._environment = _environment()
        self._runs = trio.CapacityLimiter(MAX_RUNS)
        asked = subprocess.run(
            [*self._command, "rev-parse", "--git-dir"],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=MAX_SECONDS,
            check=False,
        )
        if asked.returncode != 0:
            raise ValueError(_explained(asked.stderr, self.directory))

    async def run(self, *arguments: str) -> Output:
        """Runs ``git arguments…``. Raises `GitFailed` when git says no, `ToolError` when it takes too long.

        Cancelling stops git. None of the arguments may come from outside as it is.
        """
        with trio.move_on_after(MAX_SECONDS):
            async with self._runs:
                return await self._run(arguments)
        raise ToolError(f"git {arguments[0]} was stopped after {MAX_SECONDS} s")

    async def commit(self, revision: str) -> str:
        """The id of the commit that ``revision`` (a branch, a tag, an id, ``main~3``) names."""
        return await self._verified(revision, f"{checked(revision)}^{{commit}}")

    async def object(self, revision: str, path: str) -> str:
        """The id of what is at ``path`` in the commit that ``revision`` names."""
        commit = await self.commit(revision)
        return await self._verified(f"{revision}:{path}", f"{commit}:{checked(path)}")

    async def _verified(self, said: str, expression: str) -> str:
        try:
            found = await self.run("rev-parse", "--verify", "--quiet", "--end-of-options", expression)
        except GitFailed as error:
            raise NoSuchRevision(f"this repository has no {said!r}") from error
        # "^main" is answered with "^" and an id, which another command would take for an exclusion
        if not _OBJECT_ID.fullmatch(found.data):
            raise NoSuchRevision(f"this repository has no {said!r}")
        return found.text.strip()

    async def _run(self, arguments: Sequence[str]) -> Output:
        printed = bytearray()
        complaint = bytearray()
        truncated = False
        async with trio.open_nursery() as nursery:
            start = partial(
                trio.run_process,
                [*self._command, *arguments],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                check=False,
            )
            process: trio.Process = await nursery.start(start)
            assert process.stdout is not None
            assert process.stderr is not None
            nursery.start_soon(_keep_first, process.stderr, complaint)
            left = MAX_OUTPUT_BYTES
            async with process.stdout:
                async for chunk in process.stdout:
                    printed += chunk[:left]
                    left -= len(chunk)
                    if left < 0:
                        truncated = True
                        nursery.cancel_scope.cancel()
                        break
        if process.returncode != 0 and not truncated:
            raise GitFailed(_explained(bytes(complaint), self.directory))
        return Output(bytes(printed), truncated)


def checked(value: str) -> str:
    """``value`` if it can be part of an argument at all; raises `ToolError` if not."""
    if len(value) > MAX_NAME_CHARACTERS:
        raise ToolError(f"longer than {MAX_NAME_CHARACTERS} characters: {value[:40]!r}…")
    if any(character < " " for character in value):
        raise ToolError(f"a control character is not allowed: {value!r}")
    try:
        os.fsencode(value)
    except UnicodeEncodeError as error:
        raise ToolError(f"no valid text: {value!r}") from error
    return value


async def _keep_first(stream: trio.abc.ReceiveStream, kept: bytearray) -> None:
    async with stream:
        async for chunk in stream:
            kept += chunk[: max(0, 2_000 - len(kept))]


def _environment() -> dict[str, str]:
    kept = {key: value for key in ("PATH", "HOME", "XDG_CONFIG_HOME") if (value := os.environ.get(key))}
    return kept | {
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_PAGER": "cat",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }


def _explained(complaint: bytes, directory: Path) -> str:
    text = " ".join(complaint.decode("utf-8", "replace").split()).removeprefix("fatal: ")
    if "dubious ownership" in text:
        return (
            f"git does not trust {str(directory)!r}, as it belongs to another user; if you do: "
            f"git config --global --add safe.directory {directory}"
        )
    if "not a git repository" in text:
        return f"{str(directory)!r} is not inside a git repository"
    return f"git: {text[:500]}" if text else "git failed without a word"
