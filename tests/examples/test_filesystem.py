"""The file server, through a client: no path leaves the root, writes are whole, subscribers hear of real changes."""

from __future__ import annotations

import base64
import errno
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from mcp_actors import Client, ResourceNotFound, RpcError, ToolError
from mcp_actors.examples.filesystem import RootFolder, server
from mcp_actors.testing import connected_pair
from mcp_actors.types import BlobResourceContents, EmbeddedResource, ResourceTemplateReference, TextContent


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "my files"
    (root / "docs" / "deep").mkdir(parents=True)
    (root / "docs" / "a.md").write_text("# title\n")
    (root / "docs" / "deep" / "b.md").write_text("needle")
    (root / "50% & #1?.txt").write_text("odd name")
    (root / "picture.png").write_bytes(b"\x89PNG\xff")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "outside").mkdir()
    (root / "link to file").symlink_to(tmp_path / "secret")
    (root / "link to directory").symlink_to(tmp_path)
    (root / "link inside").symlink_to("docs")
    (root / "dangling").symlink_to(tmp_path / "outside" / "new")
    os.mkfifo(root / "pipe")
    return root


@asynccontextmanager
async def serving(*args: str, **options: Any) -> AsyncIterator[Client]:
    with trio.fail_after(20):
        async with connected_pair(server(*args), **options) as client:
            yield client


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    return result.structured_content if isinstance(result.structured_content, dict) else result.content[0]


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


def left_over(root: Path) -> list[Path]:
    return list(root.rglob("*.tmp"))


async def test_reading_text_and_bytes(root: Path) -> None:
    async with serving(str(root)) as client:
        text = await call(client, "read_file", path="docs/a.md")
        picture = await call(client, "read_file", path="./picture.png")
    assert text.text == "# title\n"
    assert isinstance(picture, EmbeddedResource)
    assert isinstance(picture.resource, BlobResourceContents)
    assert picture.resource.mime_type == "image/png"
    assert base64.b64decode(picture.resource.blob) == b"\x89PNG\xff"


LEADS_NOWHERE = {
    "parent": "../secret",
    "parent further down": "docs/../../secret",
    "parent and back": "docs/../picture.png",
    "only parent": "..",
    "absolute": "/etc/passwd",
    "absolute, twice": "//etc/passwd",
    "link to a file": "link to file",
    "link to a directory": "link to directory/secret",
    "link that stays inside": "link inside/a.md",
    "link to nothing": "dangling",
    "null": "docs/a.md\0.png",
    "no file name": "\ud800",
    "long": "x" * 300,
    "pipe": "pipe",
    "a directory": "docs",
    "the root": "",
    "a file as a directory": "docs/a.md/x",
}


@pytest.mark.parametrize("path", LEADS_NOWHERE.values(), ids=LEADS_NOWHERE)
def test_no_path_leaves_the_root(root: Path, path: str) -> None:
    outside = sorted(root.parent.iterdir())
    with pytest.raises(ToolError) as reading:
        RootFolder(root).read(path)
    with pytest.raises(ToolError) as writing:
        RootFolder(root).write(path, b"new", create_directories=True)
    for caught in (reading, writing):
        assert str(root) not in str(caught.value)
    assert sorted(root.parent.iterdir()) == outside
    assert (root.parent / "secret").read_text() == "secret"
    assert not list((root.parent / "outside").iterdir())


async def test_a_link_that_is_planted_after_the_look_is_not_followed(root: Path) -> None:
    served = RootFolder(root)
    assert served.is_directory("docs")
    (root / "docs").rename(root / "old")
    (root / "docs").symlink_to(root.parent / "outside")
    with pytest.raises(ToolError, match="symbolic link"):
        served.write("docs/planted", b"bad")
    assert not (root.parent / "outside" / "planted").exists()


async def test_the_model_is_told_what_is_wrong_with_a_path(root: Path) -> None:
    async with serving(str(root)) as client:
        assert "cannot leave the root" in await refused(client, "read_file", path="../secret")
        assert "symbolic link" in await refused(client, "read_file", path="link to file")
        assert "nothing at" in await refused(client, "list_directory", path="nope")
        assert "absolute" in await refused(client, "search_files", pattern="*", path="/etc")
        assert "not a regular file" in await refused(client, "write_file", path="dangling", content="x")


async def test_large_files_are_refused(root: Path) -> None:
    with (root / "large").open("wb") as file:
        file.truncate(3_000_000)
    async with serving(str(root)) as client:
        assert "larger than 2000000 bytes" in await refused(client, "read_file", path="large")


async def test_writing_replaces_a_file_in_one_step(root: Path) -> None:
    script = root / "docs" / "a.md"
    script.chmod(0o750)
    with script.open() as already_open:
        async with serving(str(root)) as client:
            await call(client, "write_file", path="docs/a.md", content="größer")
            await call(client, "write_file", path="new/and/deep.txt", content="", create_directories=True)
            assert "nothing at" in await refused(client, "write_file", path="no/such.txt", content="")
        assert already_open.read() == "# title\n"  # the old file, untouched, to whoever had it open
    assert script.read_text() == "größer"
    assert script.stat().st_mode & 0o777 == 0o750
    assert (root / "new" / "and" / "deep.txt").read_text() == ""
    assert left_over(root) == []


def test_a_write_that_fails_leaves_nothing_behind(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ToolError, match="No space left"):
        RootFolder(root).write("docs/a.md", b"new")
    assert (root / "docs" / "a.md").read_text() == "# title\n"
    assert sorted(path.name for path in (root / "docs").iterdir()) == ["a.md", "deep"]


async def test_read_only(root: Path) -> None:
    async with serving(str(root), "--read-only") as client:
        names = [tool.name async for tool in client.tools()]
    assert names == ["read_file", "list_directory", "search_files"]


async def test_listing(root: Path) -> None:
    async with serving(str(root)) as client:
        listing = await call(client, "list_directory")
    kinds = {entry["name"]: entry["kind"] for entry in listing["entries"]}
    assert kinds == {
        "50% & #1?.txt": "file",
        "dangling": "link",
        "docs": "directory",
        "link inside": "link",
        "link to directory": "link",
        "link to file": "link",
        "picture.png": "file",
        "pipe": "other",
    }
    assert listing["truncated"] is False


async def test_names_that_are_no_text_are_listed_all_the_same(root: Path) -> None:
    (root / os.fsdecode(b"\xff.txt")).touch()
    async with serving(str(root)) as client:
        listing = await call(client, "list_directory")
        found = await call(client, "search_files", pattern="*.txt")
    assert "\ufffd.txt" in {entry["name"] for entry in listing["entries"]}
    assert "\ufffd.txt" in {match["path"] for match in found["matches"]}


async def test_search_by_name_path_and_text(root: Path) -> None:
    heard: list[float] = []
    async with serving(str(root)) as client:
        names = await call(client, "search_files", pattern="*.md")
        paths = await call(client, "search_files", pattern="docs/deep/*")
        result = await client.call_tool(
            "search_files", {"pattern": "*", "text": "needle"}, on_progress=lambda p: heard.append(p.progress)
        )
        first = await call(client, "search_files", pattern="*", max_results=1)
    assert [match["path"] for match in names["matches"]] == ["docs/a.md", "docs/deep/b.md"]
    assert [match["path"] for match in paths["matches"]] == ["docs/deep/b.md"]
    assert [match["path"] for match in result.structured_content["matches"]] == ["docs/deep/b.md"]
    assert heard
    assert heard[-1] == result.structured_content["looked_at"] == 11
    assert len(first["matches"]) == 1
    assert first["truncated"] is True
    assert names["truncated"] is False


async def test_a_search_works_in_slices(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_actors.examples.filesystem.SLICE_SECONDS", 0)
    heard: list[float] = []
    async with serving(str(root)) as client:
        await client.call_tool(
            "search_files", {"pattern": "*"}, on_progress=lambda p: heard.append(p.progress)
        )
    assert heard == [*range(1, 12)]


async def test_files_are_resources(root: Path) -> None:
    base = root.as_uri()
    async with serving(str(root)) as client:
        resources = {resource.uri: resource async for resource in client.resources()}
        odd = await client.read_resource(f"{base}/50%25%20%26%20%231%3F.txt")
        top = await client.read_resource(base)
        docs = await client.read_resource(f"{base}/docs")
        picture = await client.read_resource(f"{base}/picture.png")
        completion = await client.complete(ResourceTemplateReference(f"{base}/{{+path}}"), "path", "docs/d")
    assert resources[f"{base}/picture.png"].mime_type == "image/png"
    assert resources[f"{base}/picture.png"].size == 5
    assert f"{base}/link%20to%20file" not in resources
    assert odd.contents[0].text == "odd name"
    assert odd.contents[0].mime_type == "text/plain"
    assert "docs/" in top.contents[0].text.splitlines()
    assert docs.contents[0].mime_type == "inode/directory"
    assert docs.contents[0].text == "a.md\ndeep/"
    assert base64.b64decode(picture.contents[0].blob) == b"\x89PNG\xff"
    assert completion.values == ["docs/deep/"]


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("nothing", ResourceNotFound),
        ("..%2Fsecret", RpcError),
        ("%2E%2E/secret", RpcError),
        ("link%20to%20file", RpcError),
    ],
)
async def test_resources_that_are_not_there(root: Path, path: str, error: type[RpcError]) -> None:
    async with serving(str(root)) as client:
        with pytest.raises(error) as caught:
            await client.read_resource(f"{root.as_uri()}/{path}")
    assert caught.value.code in (-32002, -32602)


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_subscribers_hear_of_real_changes(root: Path, era: str) -> None:
    file = root / "docs" / "a.md"
    uris = [file.as_uri(), (root / "docs").as_uri(), (root / "docs" / "new.md").as_uri()]
    async with serving(str(root), era=era) as client:
        async with client.listen(uris=uris) as events:
            heard = aiter(events)
            file.write_text("changed")
            assert (await anext(heard)).uri == uris[0]
            (root / "docs" / "new.md").touch()
            assert {(await anext(heard)).uri, (await anext(heard)).uri} == set(uris[1:])
            file.unlink()
            assert {(await anext(heard)).uri, (await anext(heard)).uri} == set(uris[:2])
            (root / "picture.png").unlink()  # nobody asked
            file.touch()
            assert {(await anext(heard)).uri, (await anext(heard)).uri} == set(uris[:2])


class FakeDisk:
    """Stands in for the watching library, which runs in a thread: tells whether it runs, and nothing else."""

    def __init__(self) -> None:
        self.began = trio.Event()
        self.ended = trio.Event()
        self.error: Exception | None = None

    def watch(self, *paths: Path, stop_event: trio.Event, **options: Any) -> Iterator[set[Any]]:
        trio.from_thread.run_sync(self.began.set)
        if self.error is not None:
            raise self.error
        trio.from_thread.run(stop_event.wait)
        trio.from_thread.run_sync(self.ended.set)
        yield from ()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FakeDisk:
    disk = FakeDisk()
    monkeypatch.setattr("mcp_actors.examples.filesystem.watch", disk.watch)
    return disk


async def test_the_disk_is_watched_only_while_somebody_listens(root: Path, disk: FakeDisk) -> None:
    async with serving(str(root), era="legacy") as client:
        await client.ping()
        assert not disk.began.is_set()
        await client.subscribe_resource((root / "docs").as_uri())
        await disk.began.wait()
        await client.unsubscribe_resource((root / "docs").as_uri())
        await disk.ended.wait()
        disk.began, disk.ended = trio.Event(), trio.Event()
        await client.subscribe_resource((root / "picture.png").as_uri())
        await disk.began.wait()
        assert not disk.ended.is_set()


async def test_where_nothing_can_be_watched_it_is_looked_at_now_and_then(
    root: Path, disk: FakeDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_actors.examples.filesystem.LOOK_EVERY", 10)
    disk.error = OSError(errno.ENOSPC, "OS file watch limit reached")
    uri = (root / "picture.png").as_uri()
    async with serving(str(root)) as client:
        async with client.listen(uris=[uri]) as events:
            await disk.began.wait()
            (root / "picture.png").unlink()
            assert (await anext(aiter(events))).uri == uri


@pytest.mark.parametrize("args", [(), ("a", "b"), ("--readonly", "a"), ("--read-only",)])
def test_arguments_that_make_no_sense(args: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="usage: mcp-actors serve"):
        server(*args)


def test_a_root_that_is_none(root: Path) -> None:
    with pytest.raises(ValueError, match="there is no directory"):
        server(str(root / "docs" / "a.md"))


@pytest.mark.parametrize("depth", [33, 330])
async def test_directories_are_made_to_a_depth(root: Path, depth: int) -> None:
    async with serving(str(root)) as client:
        path = "/".join(["d"] * depth + ["file"])
        said = await refused(client, "write_file", path=path, content="", create_directories=True)
        assert f"{depth} directories deep, and none is made deeper than 32" in said
        assert not (root / "d").exists()
        deepest = "/".join(["d"] * 32 + ["file"])
        await call(client, "write_file", path=deepest, content="", create_directories=True)
        again = await refused(client, "write_file", path=f"{deepest[:-4]}d/file", content="")
    assert "nothing at" in again
    assert (root / deepest).exists()
    assert not (root / deepest[:-4] / "d").exists()


async def test_a_path_that_no_program_could_open_is_refused(root: Path) -> None:
    path = "d/" * 4_999 + "file"
    async with serving(str(root)) as client:
        for tool, more in (
            ("read_file", {}),
            ("list_directory", {}),
            ("search_files", {"pattern": "*"}),
            ("write_file", {"content": "", "create_directories": True}),
        ):
            said = await refused(client, tool, path=path, **more)
            assert "a path of more than 4000 bytes" in said
            assert len(said) < 200
    assert not (root / "d").exists()


async def test_what_a_search_holds_is_bounded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(100):
        (root / f"{'n' * 200}{number}").touch()
    monkeypatch.setattr("mcp_actors.examples.filesystem.MAX_MATCHED_BYTES", 5_000)
    async with serving(str(root)) as client:
        heavy = await call(client, "search_files", pattern="nnn*")
        monkeypatch.setattr("mcp_actors.examples.filesystem.MAX_LOOKED_AT", 50)
        many = await call(client, "search_files", pattern="*.md")
    assert heavy["truncated"] is True
    assert len(heavy["matches"]) == 21
    assert many["truncated"] is True
    assert many["looked_at"] == 50


def test_a_walk_reads_no_more_names_than_it_may(root: Path) -> None:
    assert len(list(RootFolder(root).walk("", 5))) == 5
    assert len(list(RootFolder(root).walk("", 100))) == 11
    assert list(RootFolder(root).walk("", 0)) == []
