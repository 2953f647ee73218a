"""Skills (SEP-2640) with the official TypeScript SDK: our client at its server, its client at ours, and a gateway.

One folder is served by both: what they say of it has to be the same.
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

from mcp_actors import Client, RpcError, Server
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
    program = tmp_path / "served.py"
    program.write_text(
        "from mcp_actors import Server\nserver = Server('ours', page_size=2)\n"
        f"server.add_skills({str(folder)!r})\nserver.run()\n"
    )
    report = read(peers, era, [sys.executable, str(program)])
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
