"""The git server, through a client: what it tells, and that neither names nor configuration make git do more."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from mcp_actors import Client, ResourceNotFound, RpcError
from mcp_actors.examples.git import server
from mcp_actors.testing import connected_pair
from mcp_actors.types import EmbeddedResource, PromptReference, ResourceTemplateReference, TextContent

from .processes import children


class Repo:
    """A real repository, made by the git program."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            path.mkdir()
            self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str, author: str = "Ann") -> str:
        who = {
            f"GIT_{role}_{part}": value
            for role in ("AUTHOR", "COMMITTER")
            for part, value in (("NAME", author), ("EMAIL", f"{author.lower()}@example.org"))
        }
        command = ["git", "-c", "core.hooksPath=/dev/null", "-C", str(self.path), *arguments]
        environment = {
            "PATH": os.environ["PATH"],
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            **who,
        }
        return subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True
        ).stdout.strip()

    def commit(self, message: str, author: str = "Ann", **files: str | bytes) -> str:
        for name, content in files.items():
            path = self.path / name.replace("__", "/").replace("_", ".")
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        self.git("add", ".")
        self.git("commit", "-q", "-m", message, author=author)
        return self.git("rev-parse", "HEAD")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repo = Repo(tmp_path_factory.mktemp("original") / "project")
    repo.commit("first", a_txt="one\n", src__ü_txt="two\n", logo_png=b"\x89PNG\xff")
    repo.git("checkout", "-q", "-b", "feature/x")
    repo.commit("second\n\nbecause", author="Bob [x]", a_txt="one\ntwo\n")
    repo.git("tag", "v1")
    return repo.path


@pytest.fixture
def repo(original: Path, tmp_path: Path) -> Repo:
    return Repo(Path(shutil.copytree(original, tmp_path / "project")))


@asynccontextmanager
async def serving(repo: Repo) -> AsyncIterator[Client]:
    with trio.fail_after(30):
        async with connected_pair(server(str(repo.path))) as client:
            yield client


async def subjects(client: Client, **arguments: Any) -> list[str]:
    result = await client.call_tool("log", arguments)
    assert not result.is_error, result.content
    return [commit["subject"] for commit in result.structured_content["commits"]]


async def text(client: Client, tool: str, *, is_error: bool = False, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert bool(result.is_error) is is_error, result.content
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


async def _run_instead(run_process: Any, program: str, command: list[str], **options: Any) -> Any:
    return await run_process([program, *command[1:]], **options)


async def test_the_log_and_what_narrows_it(repo: Repo) -> None:
    async with serving(repo) as client:
        assert await subjects(client) == ["second", "first"]
        assert await subjects(client, revision="main") == ["first"]
        assert await subjects(client, author="bob [X]") == ["second"]
        assert await subjects(client, author=".*") == []  # a part of a name, no pattern
        assert await subjects(client, path="src") == ["first"]
        assert await subjects(client, path=":(exclude)src") == []
        assert await subjects(client, since="2099-01-01") == []
        result = await client.call_tool("log", {"limit": 1})
    assert result.structured_content["truncated"] is True
    assert [commit["author"] for commit in result.structured_content["commits"]] == ["Bob [x]"]


async def test_show_and_diff(repo: Repo) -> None:
    async with serving(repo) as client:
        shown = await text(client, "show", revision="v1")
        changed = await text(client, "diff", base="main")
        elsewhere = await text(client, "diff", base="main", head="v1", path="src")
    assert "    because\n" in shown
    assert "+two\n" in shown
    assert "+++ b/a.txt\n@@ -1 +1,2 @@\n one\n+two\n" in changed
    assert "two" not in elsewhere


HOSTILE = (
    "--output={file}",
    "-p",
    "--all",
    "main..v1",
    "^main",
    "HEAD --all",
    "",
    "x" * 2_000,
    "main\n",
    "nope",
    "\x07",
)


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
async def test_names_are_never_options(repo: Repo, tmp_path: Path, name: str) -> None:
    file = tmp_path / "written"
    name = name.format(file=file)
    async with serving(repo) as client:
        for tool, arguments in (
            ("log", {"revision": name}),
            ("show", {"revision": name}),
            ("diff", {"base": name}),
        ):
            said = await text(client, tool, is_error=True, **arguments)
            assert "this repository has no" in said or "not allowed" in said or "longer than" in said
        with pytest.raises(RpcError):
            await client.get_prompt("analyze_commits", {"branch": name or "--all"})
        await client.call_tool(
            "log", {"path": f"--output={file}", "author": f"--output={file}", "since": f"--output={file}"}
        )
    assert not file.exists()


async def test_the_repository_cannot_make_git_run_programs(repo: Repo, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    repo.commit("attributes", _gitattributes="*.txt diff=evil filter=evil\n")
    for key in (
        "alias.log",
        "core.fsmonitor",
        "core.pager",
        "diff.evil.command",
        "diff.evil.textconv",
        "diff.external",
        "filter.evil.clean",
        "filter.evil.smudge",
        "gpg.program",
        "pager.log",
        "pager.show",
    ):
        repo.git("config", key, f"touch {mark} #")
    for key in ("log.showSignature", "diff.noprefix", "log.follow"):
        repo.git("config", key, "true")
    repo.git("config", "color.ui", "always")
    async with serving(repo) as client:
        assert await subjects(client) == ["attributes", "second", "first"]
        shown = await text(client, "show", revision="HEAD~1")
        changed = await text(client, "diff", base="main", head="v1")
    assert "+++ b/a.txt\n" in shown
    assert "+++ b/a.txt\n" in changed
    assert not mark.exists()


async def test_the_environment_of_the_server_is_not_that_of_git(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Repo(tmp_path / "other")
    other.commit("elsewhere", a_txt="")
    monkeypatch.setenv("GIT_DIR", str(other.path / ".git"))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", "false")
    async with serving(repo) as client:
        assert await subjects(client, limit=1) == ["second"]
        assert "+two\n" in await text(client, "show")


async def test_output_is_bounded(repo: Repo) -> None:
    repo.commit("large", large_txt="line\n" * 400_000)
    async with serving(repo) as client:
        shown = await text(client, "show")
        with pytest.raises(RpcError, match="larger than"):
            await client.read_resource("git://file/HEAD/large.txt")
        assert await subjects(client, limit=1) == ["large"]
    assert len(shown) < 1_001_000
    assert "[cut after 1000000 bytes]" in shown


async def test_time_is_bounded(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(repo) as client:
        monkeypatch.setattr("mcp_actors.examples.git.MAX_SECONDS", 0)
        assert "was stopped after 0 s" in await text(client, "show", is_error=True)


@pytest.mark.parametrize("calls", [40, 400])
async def test_git_runs_a_few_times_at_once(
    repo: Repo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, calls: int
) -> None:
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    async with serving(repo) as client:
        program.chmod(0o755)
        before = children()
        monkeypatch.setattr("trio.run_process", partial(_run_instead, trio.run_process, str(program)))
        async with trio.open_nursery() as nursery:
            for _ in range(calls):
                nursery.start_soon(client.call_tool, "log")
            while len(children() - before) < 8:
                await trio.lowlevel.checkpoint()
            for _ in range(100):
                await trio.lowlevel.checkpoint()
            assert len(children() - before) == 8
            nursery.cancel_scope.cancel()
    assert children() == before


async def test_commits_and_files_are_resources(repo: Repo) -> None:
    async with serving(repo) as client:
        (second, first) = [each async for each in client.resources()]
        commit = await client.read_resource(second.uri)
        file = await client.read_resource("git://file/feature%2Fx/a.txt")
        older = await client.read_resource("git://file/main/src/%C3%BC.txt")
        picture = await client.read_resource("git://file/v1/logo.png")
        directory = await client.read_resource("git://file/v1/src")
        for missing in (
            "git://commit/nope",
            "git://file/v1/nope",
            "git://file/nope/a.txt",
            "git://file/v1/../../x",
        ):
            with pytest.raises(ResourceNotFound):
                await client.read_resource(missing)
    assert first.title == "first"
    assert "because" in commit.contents[0].text
    assert file.contents[0].text == "one\ntwo\n"
    assert older.contents[0].text == "two\n"
    assert picture.contents[0].blob == "iVBOR/8="
    assert directory.contents[0].text == "ü.txt"


async def test_the_prompt_brings_the_log_along(repo: Repo) -> None:
    async with serving(repo) as client:
        whole = await client.get_prompt("analyze_commits", {"branch": "feature/x", "since": "2000-01-01"})
        by_ann = await client.get_prompt("analyze_commits", {"author": "ann"})
        with pytest.raises(RpcError, match="has no 'nope'"):
            await client.get_prompt("analyze_commits", {"branch": "nope"})
        again = await client.read_resource(by_ann.messages[1].content.resource.uri)
    question, log = (message.content for message in whole.messages)
    assert isinstance(question, TextContent)
    assert "the 2 commits on feature/x since 2000-01-01" in question.text
    assert isinstance(log, EmbeddedResource)
    assert [line.partition(": ")[2] for line in log.resource.text.splitlines()] == ["second", "first"]
    assert by_ann.messages[1].content.resource.text.endswith("Ann: first")
    assert again.contents[0].text == by_ann.messages[1].content.resource.text


async def test_completion_knows_the_repository(repo: Repo) -> None:
    prompt = PromptReference("analyze_commits")
    file = ResourceTemplateReference("git://file/{ref}/{+path}")
    sha = repo.git("rev-parse", "main")
    async with serving(repo) as client:

        async def values(*arguments: Any, **context: str) -> list[str]:
            return (await client.complete(*arguments, context=context or None)).values

        assert set(await values(prompt, "branch", "")) == {"feature/x", "main"}
        assert await values(prompt, "branch", "FEAT") == ["feature/x"]
        assert set(await values(prompt, "author", "")) == {"Ann", "Bob [x]"}
        assert await values(prompt, "author", "", branch="main") == ["Ann"]
        assert await values(prompt, "author", "", branch="--all") == []
        assert await values(file, "ref", "m") == ["main"]
        assert await values(ResourceTemplateReference("git://log/{ref}{?since,author}"), "ref", "m") == [
            "main"
        ]
        assert await values(file, "path", "src/", ref="main") == ["src/ü.txt"]
        assert await values(file, "path", "s", ref="main") == ["src/"]
        assert await values(ResourceTemplateReference("git://commit/{sha}"), "sha", sha[:6]) == [sha]


async def test_a_repository_without_a_commit(tmp_path: Path) -> None:
    async with serving(Repo(tmp_path / "empty")) as client:
        assert [each async for each in client.resources()] == []
        assert (await client.complete(PromptReference("analyze_commits"), "branch", "")).values == []
        assert "this repository has no 'HEAD'" in await text(client, "log", is_error=True)


def test_what_is_no_repository(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not inside a git repository"):
        server(str(tmp_path))
    with pytest.raises(ValueError, match="there is no directory"):
        server(str(tmp_path / "nothing"))
    with pytest.raises(ValueError, match="usage: mcp-actors serve"):
        server("--upload-pack=x")
    with pytest.raises(ValueError, match="usage: mcp-actors serve"):
        server()


def test_a_repository_of_somebody_else(repo: Repo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\necho \"fatal: detected dubious ownership in repository at 'x'\" >&2\nexit 128\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    with pytest.raises(ValueError, match=r"belongs to another user.*safe\.directory"):
        server(str(repo.path))
