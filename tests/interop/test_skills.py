"""Skills (SEP-2640) with the official TypeScript SDK and FastMCP: our client at their servers, their clients at ours,
and proxies of both.

One folder is served by each: what they say of it has to be the same.
"""

from __future__ import annotations

import base64
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from mcp_actors import Client, LocalProtocolError, RpcError, Server
from mcp_actors._client.skills import written_skill
from mcp_actors.gateway import Gateway, Upstream

from .installation import Peers
from .servers import DRIVERS
from .user import LIMIT

FILES = {
    "acme/refunds/SKILL.md": (
        b'---\nname: refunds\ndescription: >-\n  Refund a customer,\n  "quickly"\nlicense: no\n'
        b"metadata:\n  version: '1.0'\n  since: 2026-01-02\n"
        b"x-values: [a, ~, 010, 1e3, 1.0, true, {b: c}]\n---\n\nRead `examples/a b.md`.\n"
    ),
    "acme/refunds/examples/a b.md": "Grüße 🐍\r\n".encode(),
    "acme/refunds/assets/logo.png": b"\x89PNG\r\n\xff",
    "acme/refunds/parts/inner/SKILL.md": b"\xef\xbb\xbf---\r\nname: inner\r\ndescription: Inside\r\n---\r\n",
    "acme/refunds/empty.txt": b"",
    "review/SKILL.md": b"---\nname: review\ndescription: Review a change\n---\n",
}
URIS = [
    "skill://acme/refunds/SKILL.md",
    "skill://acme/refunds/parts/inner/SKILL.md",
    "skill://review/SKILL.md",
]
EACH_ERA = pytest.mark.parametrize("era", ["legacy", "auto"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path, content in FILES.items():
        file = tmp_path / "skills" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return tmp_path / "skills"


def theirs(peers: Peers, folder: Path) -> str:
    command = [peers.node, DRIVERS / "typescript_skills.mjs", peers.modules, "serve", folder]
    return f"stdio:{shlex.join(map(str, command))}"


def read(peers: Peers, era: str, command: list[str]) -> dict[str, Any]:
    driver = [str(peers.node), str(DRIVERS / "typescript_skills.mjs"), str(peers.modules), "read", era]
    done = subprocess.run([*driver, *command], capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def serving(tmp_path: Path, folder: Path) -> Path:
    program = tmp_path / "served.py"
    program.write_text(
        "from mcp_actors import Server\nserver = Server('ours', page_size=2)\n"
        f"server.add_skills({str(folder)!r})\nserver.run()\n"
    )
    return program


async def entries_of(target: Any, **options: Any) -> dict[str, Any]:
    async with Client(target, **options) as client:
        return {skill.uri: _sorted(written_skill(skill)) async for skill in client.skills()}


def _sorted(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "resources": sorted(entry["resources"], key=lambda each: each["uri"])}


@EACH_ERA
async def test_our_client_reads_the_skills_of_the_official_server(
    peers: Peers, folder: Path, era: str
) -> None:
    ours = Server("ours")
    ours.add_skills(folder)
    with trio.fail_after(LIMIT):
        async with Client(theirs(peers, folder), era=era) as client:
            found = {}
            async for skill in client.skills():
                found[skill.uri] = _sorted(written_skill(skill))
                await client.load_skill(skill)
                for each in skill.resources:
                    path = each.uri.removeprefix("skill://").replace("%20", " ")
                    assert await client.read_skill_file(skill, each.uri) == FILES[path]
                assert await client.get_skill(skill.uri) == skill
            assert sorted(found) == URIS
            assert found == await entries_of(ours)
            children = {each.uri async for each in client.directory("skill://acme/refunds")}
            assert "skill://acme/refunds/examples" in children
            with pytest.raises(RpcError) as caught:
                await client.get_skill("skill://nothing/SKILL.md")
            assert caught.value.code == -32602


@EACH_ERA
def test_the_official_client_reads_our_skills(peers: Peers, folder: Path, era: str, tmp_path: Path) -> None:
    report = read(peers, era, [sys.executable, str(serving(tmp_path, folder))])
    assert (report["supported"], report["directoryRead"], report["same"]) == (True, True, True)
    assert [each["uri"] for each in report["entries"]] == URIS
    assert report["missing"] == -32602
    for path, content in FILES.items():
        uri = f"skill://{path.replace(' ', '%20')}"
        assert report["files"][uri] == [True, base64.b64encode(content).decode()]
    assert report["folders"]["skill://review"] == ["skill://review/SKILL.md"]


@EACH_ERA
def test_the_official_client_reads_both_through_a_gateway(
    peers: Peers, folder: Path, era: str, tmp_path: Path
) -> None:
    program = tmp_path / "gateway.py"
    program.write_text(
        "from mcp_actors import Server\nfrom mcp_actors.gateway import Gateway, Upstream\n"
        f"ours = Server('ours')\nours.add_skills({str(folder)!r})\n"
        "Gateway([Upstream(name='ours', target=ours), "
        f"Upstream(name='theirs', target={theirs(peers, folder)!r})]).run()\n"
    )
    report = read(peers, era, [sys.executable, str(program)])
    assert (report["directoryRead"], report["same"]) == (True, True)
    uris = [f"skill://{name}/{uri.removeprefix('skill://')}" for name in ("ours", "theirs") for uri in URIS]
    assert sorted(each["uri"] for each in report["entries"]) == uris
    for path, content in FILES.items():
        for name in ("ours", "theirs"):
            uri = f"skill://{name}/{path.replace(' ', '%20')}"
            assert report["files"][uri] == [True, base64.b64encode(content).decode()]


async def test_our_gateway_says_of_the_official_server_what_it_says_itself(
    peers: Peers, folder: Path
) -> None:
    target = theirs(peers, folder)
    with trio.fail_after(LIMIT):
        direct = await entries_of(target)
        bridged = await entries_of(
            Gateway([Upstream(name="bridge", target=target, prefix="")], presents=True)
        )
    assert direct == bridged


# -- FastMCP ----------------------------------------------------------------------------------------------------------
#
# It has skills in the stateless revision alone, reads YAML 1.1, and takes a skill inside of another one for its files.

PLAIN = {
    **FILES,
    "acme/refunds/SKILL.md": (
        b"---\nname: refunds\ndescription: >-\n  Refund a customer,\n  quickly\nlicense: MIT\n"
        b"metadata:\n  version: '1.0'\nx-values: [a, ~, 10, 1.5, 1.0, true, {b: c}]\n---\n\nRead `examples/a b.md`.\n"
    ),
}
INNER = "skill://acme/refunds/parts/inner/SKILL.md"


@pytest.fixture
def plain(folder: Path) -> Path:
    (folder / "acme/refunds/SKILL.md").write_bytes(PLAIN["acme/refunds/SKILL.md"])
    return folder


def fastmcp(peers: Peers, *arguments: str | Path) -> list[str]:
    return [str(peers.fastmcp), str(DRIVERS / "fastmcp_skills.py"), *map(str, arguments)]


def read_by_fastmcp(peers: Peers, *command: str | Path) -> dict[str, Any]:
    done = subprocess.run(
        fastmcp(peers, "read", *command), capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def assert_whole(report: dict[str, Any], folder_of: str = "") -> None:
    """FastMCP has verified each file of a report itself; here they are compared with what was written."""
    for uri in URIS:
        path = uri.removeprefix("skill://").removesuffix("SKILL.md")
        files = report["skills"][f"skill://{folder_of}{path}SKILL.md"]
        wanted = {each.removeprefix(path): PLAIN[each] for each in PLAIN if each.startswith(path)}
        assert {each: base64.b64decode(content) for each, content in files.items()} == wanted


async def test_our_client_reads_the_skills_of_fastmcp(peers: Peers, plain: Path) -> None:
    ours = Server("ours")
    ours.add_skills(plain)
    with trio.fail_after(LIMIT):
        wanted = await entries_of(ours)
        del wanted[INNER]
        async with Client(fastmcp(peers, "serve", plain)) as client:
            found = {}
            async for skill in client.skills():
                found[skill.uri] = _sorted(written_skill(skill))
                await client.load_skill(skill)
                for each in skill.resources:
                    path = each.uri.removeprefix("skill://").replace("%20", " ")
                    assert await client.read_skill_file(skill, each.uri) == PLAIN[path]
                assert await client.get_skill(skill.uri) == skill
            assert found == wanted
            with pytest.raises(RpcError) as caught:
                await client.get_skill("skill://nothing/SKILL.md")
            assert caught.value.code == -32602


async def test_fastmcp_has_no_skills_in_sessions_and_our_client_says_so(peers: Peers, plain: Path) -> None:
    with trio.fail_after(LIMIT):
        async with Client(fastmcp(peers, "serve", plain), era="legacy") as client:
            with pytest.raises(LocalProtocolError, match="did not declare"):
                await anext(client.skills())


def test_fastmcp_reads_our_skills(peers: Peers, plain: Path, tmp_path: Path) -> None:
    report = read_by_fastmcp(peers, sys.executable, serving(tmp_path, plain))
    assert [each["uri"] for each in report["entries"]] == URIS
    assert (report["same"], report["missing"]) == (True, -32602)
    assert_whole(report)


def test_fastmcp_reads_both_through_our_gateway(peers: Peers, plain: Path, tmp_path: Path) -> None:
    program = tmp_path / "gateway.py"
    program.write_text(
        "from mcp_actors import Server\nfrom mcp_actors.gateway import Gateway, Upstream\n"
        f"ours = Server('ours')\nours.add_skills({str(plain)!r})\n"
        "Gateway([Upstream(name='ours', target=ours), "
        f"Upstream(name='theirs', target={fastmcp(peers, 'serve', plain)!r})]).run()\n"
    )
    report = read_by_fastmcp(peers, sys.executable, program)
    assert report["same"]
    assert len(report["entries"]) == len(URIS) + len(URIS) - 1
    assert_whole(report, "ours/")


async def test_the_proxy_of_fastmcp_forwards_skills_whose_files_are_all_listed(
    peers: Peers, plain: Path, tmp_path: Path
) -> None:
    """It forwards resources that `resources/list` has, which of our skills is the ``SKILL.md`` alone."""
    program = serving(tmp_path, plain)
    with trio.fail_after(LIMIT):
        direct = await entries_of([sys.executable, str(program)])
        listed = {uri: entry for uri, entry in direct.items() if len(entry["resources"]) == 1}
        assert set(listed) == {INNER, "skill://review/SKILL.md"}
        assert await entries_of(fastmcp(peers, "proxy", sys.executable, str(program))) == listed
