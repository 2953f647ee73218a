"""Many who share one login: a refresh token is good once, and the issuer ends the whole grant if it is used twice."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import trio

from interop.user import LIMIT
from mcp_actors import Client
from mcp_transports.auth.file_store import FileTokenStore

from .ours import Person, Withdrawing, connected, serving, whoami
from .programs import PROGRAMS, Issuer

PROCESSES, CALLS = 4, 125


async def test_processes(issuer: Issuer, tmp_path: Path) -> None:
    """One has logged in. Four others go on with what it stored, and each of them needs the next token every time."""
    person, path = Person(), tmp_path / "tokens.json"
    outputs: list[str] = []

    async def run(url: str) -> None:
        command = [sys.executable, str(PROGRAMS / "sharing_client.py"), str(path), str(CALLS), url]
        done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
        assert done.returncode == 0, done.stderr.decode()[-3000:]
        outputs.append(done.stdout.decode())

    with trio.fail_after(LIMIT):
        async with serving(issuer) as url:
            auth = person.auth(settings={"store": FileTokenStore(path)})
            async with connected(url, auth) as session:
                client_id = (await whoami(session))["client"]
            async with trio.open_nursery() as nursery:
                for _ in range(PROCESSES):
                    nursery.start_soon(run, url)
            rotations = issuer.count(f"granted refresh_token {client_id}")
    assert outputs == ["alice\n"] * PROCESSES
    assert rotations >= CALLS  # each of them alone would have needed as many
    assert issuer.count(f"refused refresh_token {client_id}") == 0
    assert person.logins == 1


async def test_a_thousand_calls_when_the_token_ends(issuer: Issuer) -> None:
    """All are refused at once, one of them gets the next token, and none fails."""
    person, verifier = Person(), Withdrawing()
    done: list[int] = []

    async def call(client: Client, number: int) -> None:
        result = await client.call_tool("whoami", {}, timeout=LIMIT)
        assert not result.is_error
        done.append(number)

    async with serving(issuer, verifier=verifier) as url, connected(url, person.auth()) as session:
        client_id = (await whoami(session))["client"]
        verifier.withdraw()
        async with trio.open_nursery() as nursery:
            for number in range(1000):
                nursery.start_soon(partial(call, session, number))
    assert sorted(done) == list(range(1000))
    assert issuer.count(f"granted refresh_token {client_id}") == 1
    assert person.logins == 1
