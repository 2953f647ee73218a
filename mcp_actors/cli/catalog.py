"""The server of a domain, found by its catalogue: where a URL of HTTP has no path, a client command looks for one."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urljoin, urlsplit

from mcp_actors.cli.failures import WrongUsage
from mcp_actors.cli.output import safe
from mcp_actors.types.cards import CARD_TYPE, CATALOG_PATH, CATALOG_TYPE, cards_in, remote_url

__all__ = ["found_at"]

# Bytes of a document that a domain sends.
MAX_BYTES = 1024 * 1024
# Connections to a server that a domain names: those of requests, and of what goes on beside them.
MOST_CONNECTIONS = 160
# Characters of a title that are shown.
LONGEST_TITLE = 200
# Cards of one domain that are asked for.
MOST_CARDS = 20


async def found_at(url: str, say: Callable[[str], object], *, has_headers: bool) -> tuple[str, Any]:
    """Returns the URL of the server that the catalogue of a domain names; ``url`` itself, if it has no catalogue.

    What comes from the network is not trusted: URLs of it are ``https``, and lead to addresses of the same kind as the
    one that a person gave. This is so for each connection, too, as the owner of a name may give it another address
    after it was checked: a URL elsewhere comes with the HTTP client that is to be used for it, which the caller closes.

    Args:
        url: The URL of the domain, without a path.
        say: Tells a person where the server is.
        has_headers: Whether a person gave headers, which go to the domain itself and to no other.

    Raises:
        WrongUsage: It names several servers, none that can be used, or one elsewhere, and there are headers.
    """
    effects = importlib.import_module("mcp_actors.auth.effects")
    urls = importlib.import_module("mcp_actors.auth.urls")
    policy = urls.UrlPolicy()
    try:
        fetcher = importlib.import_module("mcp_transports.auth.fetcher").Fetcher(policy, url)
    except ImportError:
        return url, None

    async def fetch(place: str, accepted: str) -> Any:
        asked = effects.Fetch(
            "GET", place, [("accept", f"{accepted}, application/json")], redirects=3, max_bytes=MAX_BYTES
        )
        answer = await fetcher.fetch(asked)
        if not isinstance(answer, effects.Fetched) or answer.status != 200:
            return None
        try:
            return json.loads(answer.body)
        except (ValueError, RecursionError):
            return None

    async def card_at(place: str) -> Any:
        try:
            return await fetch(urljoin(catalog_url, place), CARD_TYPE)
        except ValueError:  # it is no URL
            return None

    async def may_be_used(place: str) -> bool:
        """Whether a URL of a card may be connected to: as safe as the one that a person gave, or the same origin."""
        if urls.same_origin(place, url):
            return "@" not in urlsplit(place).netloc
        return urlsplit(place).scheme == "https" and await fetcher.allows(place)

    catalog_url = urljoin(url, CATALOG_PATH)
    catalog = await fetch(catalog_url, CATALOG_TYPE)
    if catalog is None:
        return url, None
    try:
        named = cards_in(catalog)
    except ValueError:
        return url, None
    found: dict[str, str] = {}
    for each in named[:MOST_CARDS]:
        card = each if isinstance(each, dict) else await card_at(each)
        place = remote_url(card) if isinstance(card, dict) else None
        if place is not None and await may_be_used(place):
            # On its line: a title of several would look like other servers.
            title = " ".join(str(card.get("title") or card.get("name") or "").split())
            found.setdefault(place, title[:LONGEST_TITLE])
    if len(found) != 1:
        lines = [f"{place}  {title}" for place, title in found.items()]
        what = "several servers: give the URL of one" if found else "no server that can be used: give its URL"
        raise WrongUsage("\n".join([f"the catalogue of {url} names {what}", *lines]))
    (place,) = found
    is_elsewhere = not urls.same_origin(place, url)
    if has_headers and is_elsewhere:
        raise WrongUsage(
            f"the catalogue of {url} names {place}, elsewhere: give that URL if it shall get the headers"
        )
    say(f"the catalogue of {safe(url)} names {safe(place)}")
    transport = fetcher.transport_for(place, MOST_CONNECTIONS) if is_elsewhere else None
    return place, None if transport is None else importlib.import_module("httpx2").AsyncClient(
        transport=transport
    )
