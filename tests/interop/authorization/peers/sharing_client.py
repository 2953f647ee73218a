"""Our client in a process of its own, with the tokens of a file that other processes use too.

Usage: sharing_client.py STORE TIMES URL; prints the subjects that the server saw, each once.

It connects again and again, as if it were started anew, and finds each time that the stored token ends soon. Nobody
logs in here: if the tokens got lost among the processes, it fails.
"""

from __future__ import annotations

import json
import sys

import trio

from mcp_actors import Client
from mcp_actors.auth import AuthorizationCode, OAuth, StoredRecord
from mcp_transports.auth.browsers import NoBrowser
from mcp_transports.auth.file_store import FileTokenStore

LIMIT = 200.0  # seconds for the whole run


class Impatient(FileTokenStore):
    """Shows every token as one that ends soon."""

    async def load(self, key: str) -> StoredRecord | None:
        found = await super().load(key)
        if found is None or "renew_at" not in found.value:
            return found
        return StoredRecord({**found.value, "renew_at": 0.0}, found.generation)


async def main(store: str, times: str, url: str) -> None:
    grant = AuthorizationCode(browser=NoBrowser())
    subjects = set()
    with trio.fail_after(LIMIT):
        for _ in range(int(times)):
            async with Client(url, auth=OAuth(grant, store=Impatient(store))) as client:
                result = await client.call_tool("whoami", {})
                subjects.add(json.loads(result.content[0].text)["subject"])
    print(" ".join(sorted(subjects)))


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
