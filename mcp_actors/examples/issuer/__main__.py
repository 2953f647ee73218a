"""The command line of the example authorization server: it serves, or answers a login where no browser is."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import secrets
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from html import unescape
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from mcp_actors import Server
from mcp_actors.auth import UrlPolicy
from mcp_actors.auth.urls import is_loopback
from mcp_actors.errors import ConnectFailed
from mcp_actors.supervision.logging import write_to_stderr
from mcp_actors.supervision.printable import safe

try:
    from mcp_actors.examples.issuer.clients import KnownClient, machine_client, read_public_key
    from mcp_actors.examples.issuer.http_face import issuer_transport
    from mcp_actors.examples.issuer.issuer import Issuer
except ModuleNotFoundError as missing:
    sys.exit(f"this needs a library for signatures ({missing}): pip install 'joserfc>=1.8'")

DEFAULT_URL = "http://127.0.0.1:9000"
DEFAULT_USERS = ("ann=mcp:read,mcp:write", "bob=mcp:read")
DEFAULT_CLIENTS = ("machine=mcp:read,mcp:write",)
# Seconds for the server to answer; it is on this machine.
TIMEOUT = 10.0

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_TICKET = re.compile(r'name="ticket" value="([A-Za-z0-9_-]+)"')
_PARAGRAPH = re.compile(r"<p>(.*?)</p>")
_EPILOG = """\
approve URL NAME   answers a login where no browser is: it opens URL, chooses NAME, and prints the address to paste
"""


# -- Serving ---------------------------------------------------------------------------------------


class _Greeting:
    """Writes once that the server accepts connections, who is known, and loudly what it is not for."""

    def __init__(self, issuer: Issuer, secrets_shown: Mapping[str, str]) -> None:
        self._issuer = issuer
        self._secrets_shown = secrets_shown

    def started(self, _places: object = ()) -> None:
        issuer = self._issuer
        lines = [
            "FOR THIS MACHINE ONLY: an example authorization server that asks for no password.",
            "Every visitor of its page may choose any name. Never protect with it what others can reach.",
            "",
            f"issuer   {issuer.url}",
            *(f"person   {name}: {' '.join(scopes)}" for name, scopes in issuer.users.items()),
            *(f"program  {each.name}: {' '.join(each.scopes)}" for each in issuer.machines),
            *(f"         export {name}={value}" for name, value in self._secrets_shown.items()),
            "",
            "Ctrl-C stops it, and then it has forgotten everything.",
        ]
        write_to_stderr("\n".join(lines))


def serve(words: Sequence[str]) -> None:
    """Serves until Ctrl-C.

    Raises:
        SystemExit: A word is wrong, or the address cannot be used.
    """
    parser = argparse.ArgumentParser(
        prog="python -m mcp_actors.examples.issuer",
        description="An authorization server to try logins with, for this machine only: it asks for no password.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--listen", metavar="URL", default=DEFAULT_URL, help=f"where to serve; {DEFAULT_URL} by default"
    )
    parser.add_argument(
        "--user",
        metavar="NAME=SCOPE,...",
        action="append",
        help=f"a person, and what they may grant; {' and '.join(DEFAULT_USERS)} by default",
    )
    parser.add_argument(
        "--client",
        metavar="NAME=SCOPE,...",
        action="append",
        help=f"a program with access of its own; {DEFAULT_CLIENTS[0]} by default. Its secret is in NAME_SECRET of the "
        "environment, or made and shown",
    )
    parser.add_argument(
        "--client-key",
        metavar="NAME=FILE",
        action="append",
        default=[],
        help="the public key, in PEM, that such a program signs with in place of a secret",
    )
    options = parser.parse_args(words)
    shown: dict[str, str] = {}
    try:
        machines = _machines(options.client or DEFAULT_CLIENTS, options.client_key, shown)
        users = {name: scopes.split(",") for name, scopes in map(_pair, options.user or DEFAULT_USERS)}
        issuer = Issuer(options.listen, users, machines, report=write_to_stderr)
    except (OSError, ValueError) as wrong:
        parser.exit(2, f"{wrong}\n")
    # Any page can make a browser ask for a login, and so choose which document is fetched: none from this machine.
    fetcher = importlib.import_module("mcp_transports.auth.fetcher").Fetcher(UrlPolicy(), None)
    try:
        Server("issuer").run(issuer_transport(issuer, fetcher.fetch), task_status=_Greeting(issuer, shown))
    except ConnectFailed as failed:
        sys.exit(str(failed))


def _machines(named: Sequence[str], keys: Sequence[str], shown: dict[str, str]) -> list[KnownClient]:
    """Returns the programs of the command line; secrets that were made here go to ``shown``, by variable."""
    files = dict(map(_pair, keys))
    machines = []
    for name, scopes in map(_pair, named):
        variable = f"{re.sub('[^A-Z0-9]', '_', name.upper())}_SECRET"
        if name in files:
            key = read_public_key(Path(files.pop(name)).read_text("ascii"))
            machines.append(machine_client(name, scopes.split(","), key=key))
            continue
        secret = os.environ.get(variable)
        if not secret:
            secret = shown[variable] = secrets.token_urlsafe(24)
        machines.append(machine_client(name, scopes.split(","), secret=secret))
    if files:
        raise ValueError(f"--client-key is for a program that --client names: {', '.join(files)} is none")
    return machines


def _pair(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals or not value or not _NAME.fullmatch(name):
        raise ValueError(f"write NAME=VALUE in place of {word!r}")
    return name, value


# -- Answering a login on a terminal ---------------------------------------------------------------


class _KeptRedirection(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: it is the answer."""

    def redirect_request(self, *_arguments: Any, **_more: Any) -> None:
        return None


def approve(words: Sequence[str]) -> None:
    """Opens the page of a login, chooses a name there, and prints the address that a browser would end at.

    Raises:
        SystemExit: There is no such page, or it did not take the name.
    """
    parser = argparse.ArgumentParser(prog="python -m mcp_actors.examples.issuer approve")
    parser.add_argument("url", metavar="URL", help="the address that the login shows")
    parser.add_argument("name", metavar="NAME", help="the person to be")
    options = parser.parse_args(words)
    if not options.url.startswith("http://") or not is_loopback(options.url):
        parser.exit(2, "the login is not at this machine: open it in a browser\n")
    parts = urlsplit(options.url)
    origin = f"{parts.scheme}://{parts.netloc}"
    # No proxy leads to this machine.
    browser = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(), _KeptRedirection()
    )
    try:
        with browser.open(options.url, timeout=TIMEOUT) as page:
            ticket = _TICKET.search(page.read().decode("utf-8", "replace"))
        if ticket is None:
            sys.exit("this is not the page of a login at the example authorization server")
        form = urlencode({"ticket": ticket[1], "user": options.name}).encode()
        browser.open(urllib.request.Request(f"{origin}/consent", form, {"Origin": origin}), timeout=TIMEOUT)
    except urllib.error.HTTPError as answer:
        with answer:
            location = answer.headers.get("location")
            if location is None:
                said = _PARAGRAPH.search(answer.read().decode("utf-8", "replace"))
                sys.exit(safe(unescape(said[1])) if said is not None else f"the server answers {answer.code}")
            print(safe(location))
    except (OSError, HTTPException) as failed:
        sys.exit(f"{origin} cannot be asked: {failed}")


def main() -> None:
    """Runs the command line."""
    words = sys.argv[1:]
    if words[:1] == ["approve"]:
        approve(words[1:])
    else:
        serve(words)


if __name__ == "__main__":
    main()
