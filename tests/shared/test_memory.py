"""Shared state in memory keeps the contracts of `mcp_actors.abc.shared`, as far as one process can."""

from __future__ import annotations

import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from mcp_actors.abc import SharedState
from mcp_actors.shared import MemoryShared, shared_state
from mcp_actors.shared.redis.address import Redis
from mcp_actors.shared.sqlite import SqliteShared
from mcp_actors.testing import SharedStateSubject, check_shared_state


@asynccontextmanager
async def in_memory() -> AsyncIterator[SharedStateSubject]:
    async def do_nothing() -> None:
        await trio.lowlevel.checkpoint()

    yield SharedStateSubject(
        share=lambda: MemoryShared(clock=trio.current_time),
        cut=do_nothing,
        mend=do_nothing,
        flush=None,
    )


async def test_memory_keeps_the_contracts(autojump_clock: trio.testing.MockClock) -> None:
    report = await check_shared_state(in_memory)
    assert "pages_survive_dropped_tasks" in report.passed
    assert {name for name, _ in report.skipped} == {
        "lost_nodes_are_gone",
        "tasks_of_a_lost_node_are_abandoned",
        "flushed_state_works_again",
    }


# -- `mcp_actors.shared.shared_state` finds the shared state of a URL ------------------------------------


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("memory:", "<MemoryShared>"),
        ("sqlite:///var/lib/a%20b.db", "SqliteShared('/var/lib/a b.db')"),
        ("SQLite:tasks.db", "SqliteShared('tasks.db')"),
    ],
)
def test_a_url_names_a_place(url: str, shown: str) -> None:
    state = shared_state(url)
    assert isinstance(state, SharedState)
    assert isinstance(state, MemoryShared | SqliteShared)
    assert repr(state) == shown


@pytest.mark.parametrize("url", ["redis://localhost:1", "rediss://localhost:1", "unix:///tmp/redis.sock"])
def test_redis_is_loaded_for_its_urls(url: str) -> None:
    assert type(shared_state(url)).__name__ == "RedisShared"


@pytest.mark.parametrize(
    "url",
    [
        "", "state.db", "mysql://host/db", "memory://host", "sqlite:", "sqlite://", "sqlite:///", "sqlite://host/a.db",
        "sqlite:///a.db?mode=ro", "redis:localhost", "redis://", "redis:///1", "redis://host/first", "redis://host:port",
        "redis://host:99999", "rediss://host?ssl_cert_reqs=maybe", "rediss://host?ssl_ca_certs=/no/such/file", "unix:",
    ],
)  # fmt: skip
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"URL"):
        shared_state(url)


@pytest.mark.parametrize(
    ("query", "verified", "named"),
    [
        ("", ssl.CERT_REQUIRED, True),
        ("?ssl_check_hostname=false", ssl.CERT_REQUIRED, False),
        ("?ssl_cert_reqs=none", ssl.CERT_NONE, False),
    ],
)
def test_a_server_behind_tls_is_verified_unless_its_url_says_otherwise(
    query: str, verified: ssl.VerifyMode, named: bool
) -> None:
    context = Redis(f"rediss://host{query}", 1.0).settings("").kwargs["ssl_context"]
    assert (context.verify_mode, context.check_hostname) == (verified, named)


def test_a_store_of_another_distribution_is_found_by_its_scheme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = tmp_path / "etcd_store-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: etcd-store\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[mcp_actors.stores]\netcd = etcd_store:from_url\n")
    (tmp_path / "etcd_store.py").write_text("def from_url(url):\n    return 'opened ' + url\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert repr(shared_state("ETCD://host")) == "'opened ETCD://host'"


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.startswith(("mcp_actors.shared.redis", "coredis")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "coredis", None)
    with pytest.raises(ImportError, match=r"pip install 'coredis>=6.9,<7'"):
        shared_state("redis://localhost")


def test_nothing_is_opened_before_it_is_used(tmp_path: Path) -> None:
    shared_state(f"sqlite://{tmp_path}/state.db")
    assert list(tmp_path.iterdir()) == []
