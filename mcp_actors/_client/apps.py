"""Apps of a server (SEP-1865): pages that a host shows beside the results of tools, checked before it gets them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from mcp_actors import types as t
from mcp_actors.errors import AppRefused, LocalProtocolError
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.printable import printable
from mcp_actors.types.apps import APP_MIME, APP_SCHEME, MOST_HTML, UI, AppPage, page_of

__all__ = ["read_app"]

# Characters of what a server sends that the log shows.
_SHOWN = 200
# Characters of a URI that is asked for.
_LONGEST_URI = 4_096


async def read_app(
    of: t.Tool | str,
    read: Callable[[str], Awaitable[t.ReadResourceResult]],
    listed: Callable[[], AsyncIterator[t.Resource]] | None,
) -> AppPage:
    """Reads the page of a tool; see `Client.app`.

    Args:
        of: The tool, or the URI of the page.
        read: Reads a resource.
        listed: Iterates over the resources that the server lists; ``None`` if it lists none.
    """
    uri = of if isinstance(of, str) else of.app_uri
    if uri is None:
        raise LocalProtocolError("the tool has no page: its app_uri is None")
    if not uri.startswith(APP_SCHEME) or len(uri) > _LONGEST_URI or not uri.isprintable():
        raise AppRefused(uri, "uri", f"the URI of a page begins with {APP_SCHEME}")
    contents = (await read(uri)).contents
    if len(contents) != 1:
        raise AppRefused(uri, "contents", f"a page is one document, and this has {len(contents)}")
    if contents[0].mime_type != APP_MIME:
        shown = printable(str(contents[0].mime_type), _SHOWN)
        raise AppRefused(uri, "type", f"it is of the type {shown}, and not {APP_MIME}")
    html = _html_of(uri, contents[0])
    meta = contents[0].meta or {}
    if UI not in meta and listed is not None:
        # SEP-1865, Metadata Location: what the list says of it counts then.
        meta = await _meta_in_list(uri, listed())
    page, dropped = page_of(uri, html, meta)
    if dropped:
        log.warning(
            "what a page asks for is left out: it is malformed",
            uri=printable(uri, _SHOWN),
            number=len(dropped),
            first=printable(dropped[0], _SHOWN),
        )
    return page


async def _meta_in_list(uri: str, resources: AsyncIterator[t.Resource]) -> dict[str, Any]:
    async for each in resources:
        if each.uri == uri:
            return each.meta or {}
    return {}


def _html_of(uri: str, content: t.TextResourceContents | t.BlobResourceContents) -> str:
    # Four characters of base64 are three bytes.
    most = MOST_HTML if isinstance(content, t.TextResourceContents) else MOST_HTML // 3 * 4 + 4
    sent = content.text if isinstance(content, t.TextResourceContents) else content.blob
    try:
        html = sent
        if len(sent) <= most and not isinstance(content, t.TextResourceContents):
            html = base64.b64decode(sent, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise AppRefused(uri, "contents", f"it is no text in UTF-8: {error}") from None
    if len(sent) > most or len(html.encode(errors="surrogatepass")) > MOST_HTML:
        raise AppRefused(uri, "limits", f"it has more than {MOST_HTML:,} bytes")
    if not html.strip():
        raise AppRefused(uri, "contents", "it is empty")
    return html
