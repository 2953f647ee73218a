"""``mcp-actors diff``: the requests of a recording at a server of today, and how its answers differ."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import click

from mcp_actors import Client
from mcp_actors.cli.client_session import run_with_client
from mcp_actors.cli.connection_options import ConnectionOptions, client_options
from mcp_actors.cli.failures import EXIT_CROSSED, reported, traceback_option
from mcp_actors.cli.output import echo, echo_json, safe, styled
from mcp_actors.cli.progress import CallView
from mcp_actors.cli.record import load_recording
from mcp_actors.errors import RpcError
from mcp_actors.testing.mocked import RecordedCall, calls_of

__all__ = ["command"]

# The lists, with the member of a result that has the entries, and the member that an entry is known by.
_LISTS = {
    "tools/list": ("tools", "name"),
    "prompts/list": ("prompts", "name"),
    "resources/list": ("resources", "uri"),
    "resources/templates/list": ("resourceTemplates", "uriTemplate"),
    "skills/list": ("skills", "uri"),
}
_CALLS = frozenset(
    {
        "tools/call",
        "prompts/get",
        "resources/read",
        "completion/complete",
        "skills/get",
        "resources/directory/read",
    }
)
# What says how an answer is sent, and nothing about it.
_OF_THE_REVISION = ("_meta", "ttlMs", "cacheScope", "resultType", "execution")
# The members whose own members a server may call whatever it likes.
_OWN = ("structuredContent", "inputSchema", "outputSchema", "frontmatter", "data")
# Pages of one list that are asked for.
MOST_PAGES = 1000


@attrs.frozen
class Difference:
    """A request whose answer is another one now."""

    request: str
    diff: str


@click.command("diff", short_help="Make the calls of a recording at another server, and compare.")
@click.argument("file")
@client_options
@click.option("--json", "as_json", is_flag=True, help="The differences as one JSON object on stdout.")
@traceback_option
def command(file: str, connection: ConnectionOptions, as_json: bool, show_traceback: bool) -> None:
    """Make the calls of a recording at a server, in their order, and show which answers are others now.

    \b
    FILE  a recording of mcp-actors record
    URL   the server, such as the next version of the one that was recorded

    \b
    mcp-actors diff day.jsonl http://127.0.0.1:8001/mcp

    Lists are compared entry by entry, results and errors as JSON; `_meta` and caching hints are left aside, so that the
    two may speak different revisions. Tools are called again, with whatever they do. A request that was made several
    times with the same answer is made once. The exit code is 6 if something differs.
    """
    with reported(show_traceback):
        calls = list(_compared(calls_of(load_recording(file))))

        async def work(client: Client) -> list[Difference]:
            found: list[Difference] = []
            for call in calls:
                now = await _asked(client, call)
                if (diff := _diff(call.method, call.answer or {}, now)) is not None:
                    found.append(Difference(_shown(call), diff))
            return found

        differences = run_with_client(connection, work, CallView())
        if as_json:
            echo_json({"compared": len(calls), "differences": [attrs.asdict(each) for each in differences]})
        else:
            for each in differences:
                echo(styled(safe(each.request), bold=True))
                echo(safe(each.diff))
            echo(f"{len(calls)} requests compared, {len(differences)} with another answer")
    if differences:
        raise click.exceptions.Exit(EXIT_CROSSED)


def _compared(calls: Sequence[RecordedCall]) -> Iterator[RecordedCall]:
    """Yields the calls that are made again: each once, and a list as a whole, with the entries of all of its pages."""
    pages: dict[str, dict[str, Any]] = {}
    seen: set[str] = set()
    for call in calls:
        result = (call.answer or {}).get("result")
        if call.method in _LISTS and isinstance(result, dict):
            entries = pages.setdefault(call.method, {})
            if "cursor" not in call.params:
                entries.clear()
            entries.update(_by_key(call.method, result))
    for method, entries in pages.items():
        yield RecordedCall(method, {}, 0, answer={"result": entries})
    for call in calls:
        is_retry = "requestState" in call.params or "inputResponses" in call.params
        if call.method not in _CALLS or call.answer is None or is_retry:
            continue
        known = json.dumps([call.key, _normal(call.method, call.answer)], sort_keys=True)
        if known not in seen:
            seen.add(known)
            yield call


def _by_key(method: str, result: Mapping[str, Any]) -> dict[str, Any]:
    member, key = _LISTS[method]
    items = result.get(member)
    listed = items if isinstance(items, list) else []
    return {str(each.get(key)): each for each in listed if isinstance(each, dict)}


async def _asked(client: Client, call: RecordedCall) -> dict[str, Any]:
    try:
        if call.method not in _LISTS:
            return {"result": await client.request(call.method, call.params)}
        entries: dict[str, Any] = {}
        cursor: Any = None
        for _ in range(MOST_PAGES):
            page = await client.request(call.method, {} if cursor is None else {"cursor": cursor})
            entries |= _by_key(call.method, page)
            cursor = page.get("nextCursor")
            if cursor is None:
                break
        return {"result": entries}
    except RpcError as error:
        return {"error": {"code": error.code, "message": error.message, "data": error.data}}


def _normal(method: str, answer: dict[str, Any]) -> Any:
    """Returns an answer without what depends on the revision and on the connection."""
    if method in _LISTS and "result" in answer:
        # Its members are names of entries.
        return {"result": {name: _bare(entry) for name, entry in answer["result"].items()}}
    return _bare(answer)


def _bare(value: Any) -> Any:
    if isinstance(value, list):
        return [_bare(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: each if key in _OWN else _bare(each)
        for key, each in value.items()
        if key not in _OF_THE_REVISION and each is not None
    }


def _diff(method: str, before: dict[str, Any], now: dict[str, Any]) -> str | None:
    former, present = _normal(method, before), _normal(method, now)
    if former == present:
        return None
    lines = difflib.unified_diff(_lines(former), _lines(present), "recorded", "now", n=2, lineterm="")
    return "\n".join(lines)


def _lines(value: Any) -> list[str]:
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False).splitlines()


def _shown(call: RecordedCall) -> str:
    named = call.params.get("name") or call.params.get("uri") or ""
    arguments = call.params.get("arguments")
    words = [call.method, str(named), "" if arguments is None else json.dumps(arguments, ensure_ascii=False)]
    return " ".join(filter(None, words))[:300]
