"""Tags of lists and resources: a client that has an answer already is told so, in place of the answer.

::

    server = Server("files", extensions=[ETags()])

A request for a list or a resource that carries the tag of an answer in ``_meta``, as `ETAG`, gets an empty answer with
`UNCHANGED` as long as the whole one would have the same tag. One that carries an empty tag gets the answer, with the
tag of that. Requests without the member are answered as ever, and nothing is computed for them.

A tag is the digest of what the caller is answered: the entries or contents, and the cursor of the next page, and not
``_meta`` or the caching hints. So it is good at every node and after a restart, and tells nothing to those who are
listed something else. It is made for each request that asks for one: that costs what encoding the answer does, and what
is saved is the sending, and all that the client would do.

It is an extension of the protocol (SEP-2133), `ETAGS`, in the revisions with sessions and in those without.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

import attrs

from mcp_actors._eras.era import ETAG, ETAGS, READS, UNCHANGED
from mcp_actors._server.context import Context
from mcp_actors._server.middleware import CallNext
from mcp_actors._server.server_extension import ServerExtension
from mcp_actors._wire.codec import encode_value

__all__ = ["ETAG", "ETAGS", "UNCHANGED", "ETags"]

# Bytes of a digest: nobody who may choose a content finds another one with the same tag.
DIGEST_BYTES = 18
# What the answers to each method consist of.
_MEMBERS = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resource_templates",
    "resources/read": "contents",
}
# The members of a result that are not what it says.
_AROUND = frozenset({"_meta", "ttlMs", "cacheScope", "resultType"})


class ETags(ServerExtension):
    """Tags lists and resources for clients that ask for it; see `mcp_actors.extensions.ETags`.

    Clients of this engine ask with ``refresh=True``, in `Client.watch_tools` and its like, and for an answer whose time
    is over. It runs outside of all middleware, and the tag is that of what middleware returns.
    """

    def __init__(self) -> None:
        super().__init__(ETAGS)
        for method in sorted(READS):
            self.around(method, when=_never, meta=ETAG)(self._answer)

    async def _answer(self, ctx: Context[Any], call_next: CallNext) -> Any:
        result = await call_next()
        asked = ctx.meta.get(ETAG)
        if not isinstance(asked, str):
            return result
        if isinstance(result, dict):
            return self._of_plain(result, asked)
        entries = getattr(result, _MEMBERS[ctx.method], None)
        if not isinstance(entries, list):
            # A question to the client.
            return result
        # Of what they are now: a provider and middleware may change an entry in its place.
        said = [ctx.era.unstructure(each) for each in entries]
        tag = _digest([said, getattr(result, "next_cursor", None), result.extra])
        if tag == asked:
            nothing: dict[str, Any] = {_MEMBERS[ctx.method]: [], "meta": {UNCHANGED: True}, "extra": {}}
            if getattr(result, "next_cursor", None) is not None:
                nothing["next_cursor"] = None
            return attrs.evolve(result, **nothing)
        return attrs.evolve(result, meta={**(result.meta or {}), ETAG: tag})

    def _of_plain(self, result: dict[str, Any], asked: str) -> dict[str, Any]:
        """Returns the answer in place of a result that is JSON already."""
        if result.get("resultType", "complete") != "complete":
            return result
        said = {name: value for name, value in result.items() if name not in _AROUND}
        tag = _digest(said)
        if tag == asked:
            hints = {name: result[name] for name in _AROUND - {"_meta"} if name in result}
            lists: dict[str, Any] = {name: [] for name, value in said.items() if isinstance(value, list)}
            return {**hints, **lists, "_meta": {UNCHANGED: True}}
        return {**result, "_meta": {**(result.get("_meta") or {}), ETAG: tag}}


def _never(params: Mapping[str, Any]) -> bool:
    return False


def _digest(value: Any) -> str:
    data = encode_value(value)
    return base64.urlsafe_b64encode(hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()).decode("ascii")
