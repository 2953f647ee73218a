"""From a URL to a transport: the scheme decides, a stranger's binding comes through the same door as ours."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcp_actors.abc import ClientTransport, ServerTransport, discovery
from mcp_actors.errors import TransportNotFound
from mcp_actors.tasks import Tasks

ROOT = Path(__file__).parents[1]


class Pigeon:
    """Opens connections, serves none."""

    def __init__(self, url: str) -> None:
        self.url = url

    def connect(self) -> None: ...


class Nest:
    async def serve(self, handler: object, *, task_status: object = None) -> None: ...


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A distribution on the path with one good and two broken entry points; what others registered is set aside."""
    metadata = tmp_path / "pigeons-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: pigeons\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[mcp_actors.transports]\n"
        "Pigeon-Post = pigeons_for_test:from_url\n"
        "broken = pigeons_broken_for_test:from_url\n"
        "lacking = pigeons_for_test:no_such_name\n"
        "[mcp_actors.extensions]\npigeons = pigeons_for_test:Pigeon\n"
    )
    (tmp_path / "pigeons_for_test.py").write_text(
        "class Pigeon:\n    def __init__(self, url): self.url = url\n    def connect(self): ...\n"
        "def from_url(url): return Pigeon(url)\n"
    )
    (tmp_path / "pigeons_broken_for_test.py").write_text("import no_such_package_for_test\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(discovery, "_registered", {})
    discovery._entry_points.cache_clear()
    yield tmp_path
    discovery._entry_points.cache_clear()


def test_an_entry_point_is_found_by_its_scheme(installed: Path) -> None:
    transport = discovery.client_transport("pigeon-post:loft?birds=2")

    assert isinstance(transport, ClientTransport)
    assert transport.url == "pigeon-post:loft?birds=2"  # type: ignore[attr-defined]
    assert discovery.client_transport("PIGEON-POST:x").url == "PIGEON-POST:x"  # type: ignore[attr-defined]
    assert "pigeon-post" in discovery.installed_schemes()


def test_a_broken_entry_point_is_named_and_the_others_work(installed: Path) -> None:
    with pytest.raises(TransportNotFound) as caught:
        discovery.client_transport("broken:x")
    assert "'broken'" in str(caught.value)
    assert "pigeons_broken_for_test:from_url" in str(caught.value)
    assert "No module named 'no_such_package_for_test'" in str(caught.value)
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
    with pytest.raises(TransportNotFound, match="no_such_name"):
        discovery.client_transport("lacking:x")

    assert discovery.client_transport("pigeon-post:x")


def test_an_unknown_scheme_lists_what_there_is_and_how_to_add_one(installed: Path) -> None:
    with pytest.raises(TransportNotFound) as caught:
        discovery.server_transport("gopher://host")

    for part in ("'gopher'", "pigeon-post", "mcp_actors.transports", "register_transport"):
        assert part in str(caught.value)


@pytest.mark.parametrize("url", ["weather.py", "", ":x", "1x:y", "a b:c", "/path:with/colon"])
def test_what_is_no_url_is_said_to_be_none(installed: Path, url: str) -> None:
    with pytest.raises(TransportNotFound, match=r"is not a transport URL; one begins with .*'pigeon-post:'"):
        discovery.client_transport(url)


def test_registered_goes_before_installed(installed: Path) -> None:
    discovery.register_transport("Pigeon-Post", Pigeon)

    assert isinstance(discovery.client_transport("pigeon-post:x"), Pigeon)
    assert discovery.installed_schemes().count("pigeon-post") == 1


def test_one_sided_transports_say_which_side(installed: Path) -> None:
    discovery.register_transport("pigeon", Pigeon)
    discovery.register_transport("nest", lambda url: Nest())

    assert isinstance(discovery.server_transport("nest:"), ServerTransport)
    with pytest.raises(TransportNotFound, match="can be served, not connected to"):
        discovery.client_transport("nest:")
    with pytest.raises(TransportNotFound, match="can be connected to, not served"):
        discovery.server_transport("pigeon:x")


def test_a_scheme_must_be_one() -> None:
    with pytest.raises(ValueError, match="not a URL scheme"):
        discovery.register_transport("a:b", Pigeon)


def test_a_checkout_without_metadata_has_the_bindings_of_this_project() -> None:
    """With nothing but the checkout on the path no entry point exists: a metadata finder that finds none stands in."""
    code = (
        "import sys, importlib.metadata as m\n"
        "m.entry_points = lambda group: []\n"
        "from mcp_actors import errors\nfrom mcp_actors.abc import discovery\n"
        "print(type(discovery.server_transport('stdio:')).__name__)\n"
        "try: discovery.server_transport('plain')\n"
        "except errors.TransportNotFound as error: print(error)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )

    served, refused = run.stdout.splitlines()
    assert served == "StdioServerTransport"
    assert "'http:'" in refused


def test_the_bindings_that_are_known_are_those_that_are_published() -> None:
    published = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]

    assert {group: published[f"mcp_actors.{group}"] for group in discovery._OURS} == discovery._OURS


def test_what_is_not_a_transport_is_found_by_its_name(installed: Path) -> None:
    assert discovery.find_extension("tasks") is Tasks
    assert discovery.find_extension("pigeons").__name__ == "Pigeon"
    assert discovery.find_application("asgi").__name__ == "AsgiApp"
    with pytest.raises(LookupError, match=r"no 'owls' is installed: .*'mcp_actors\.extensions'"):
        discovery.find_extension("owls")


@pytest.mark.parametrize(
    "program", ["discovery.server_transport('stdio:')", "discovery.client_transport('http://host/mcp')"]
)
def test_a_binding_of_this_project_is_found_without_the_metadata_of_all_others(program: str) -> None:
    code = (
        f"from mcp_actors.abc import discovery; {program}; print(discovery._entry_points.cache_info().misses)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )

    assert run.stdout == "0\n"


def test_nothing_is_looked_up_on_import() -> None:
    code = "from mcp_actors.abc import discovery; print(discovery._entry_points.cache_info().misses)"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )

    assert run.stdout == "0\n"
