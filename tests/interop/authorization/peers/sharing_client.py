"""Our client in a process of its own, with the tokens of a file that other processes use too.

Usage: sharing_client.py STORE CALLS URL; prints the subjects that the server saw, each once.

Nobody logs in here: if the tokens got lost among the processes, it fails.
"""

from __future__ import annotations

import json
import sys

import trio
from mcp_transports.auth.file_store import FileTokenStore

from mcp_actors import Client
from mcp_actors.auth import AuthorizationCode, OAuth
from mcp_transports.auth.browsers import NoBrowser

LIMIT = 50.0  # seconds for the whole run


async def main(store: str, calls: str, url: str) -> None:
    grant = AuthorizationCode(browser=NoBrowser(), client_id="registered", client_secret="registered-secret")
    subjects = set()
    with trio.fail_after(LIMIT):
        async with Client(url, auth=OAuth(grant, store=FileTokenStore(store))) as client:
            for _ in range(int(calls)):
                result = await client.call_tool("whoami", {})
                subjects.add(json.loads(result.content[0].text)["subject"])
    print(" ".join(sorted(subjects)))


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
