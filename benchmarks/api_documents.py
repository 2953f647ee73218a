"""What becomes of OpenAPI documents: by this engine, and by FastMCP beside it.

::

    python -m benchmarks.api_documents FILE … [--fastmcp PYTHON] [--json FILE]

Each file is read as `mcp_actors.Server.from_openapi` reads it. A line of the table says how many operations it has and
how many become tools, the processor time of reading, how many bytes a model reads of them (name, description, input
schema), and how many tools break a rule of ``docs/reference/hosts.md``: each input and output schema is held to the
metaschema, and to what hosts read. ``--fastmcp`` is an interpreter that has FastMCP, by which the same documents are
read in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec

from mcp_actors.errors import ApiDocumentError
from mcp_actors.openapi.api import read_api

__all__ = ["Reading", "by_fastmcp", "read", "table"]

# As most providers of models have it.
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
# Keywords that hosts refuse, or take out; at the root of a schema some more are refused.
REFUSED = frozenset(
    ("$ref", "$defs", "const", "exclusiveMaximum", "exclusiveMinimum", "if", "multipleOf", "not")
)
REFUSED |= frozenset(("allOf", "oneOf", "patternProperties", "prefixItems", "propertyNames", "uniqueItems"))
REFUSED_AT_ROOT = frozenset(("allOf", "anyOf", "enum", "if", "not", "oneOf"))
FORMATS = frozenset(("date", "date-time", "time", "uuid"))
# Below these the keys are names of the API.
BY_NAME = frozenset(("properties", "$defs", "patternProperties", "dependentSchemas"))
DATA = frozenset(("default", "enum", "const", "examples", "example"))
# Seconds for one document by FastMCP.
PATIENCE = 900.0

FASTMCP = """
import asyncio, json, sys, time
import httpx2
import yaml
from fastmcp import Client, FastMCP

async def main():
    with open(sys.argv[1]) as file:
        text = file.read()
    document = json.loads(text) if text.lstrip().startswith("{") else yaml.safe_load(text)
    begin = time.process_time()
    server = FastMCP.from_openapi(document, httpx2.AsyncClient(base_url="http://127.0.0.1"))
    seconds = time.process_time() - begin
    async with Client(server, timeout=3000) as client:
        tools = await client.list_tools()
    found = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in tools]
    json.dump({"seconds": seconds, "tools": found}, sys.stdout)

asyncio.run(main())
"""


@dataclass
class Reading:
    """What came out of one document by one engine. ``broken`` counts the tools that break a rule, by the rule."""

    name: str
    operations: int = 0
    tools: int = 0
    seconds: float = 0.0
    bytes: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    failure: str = ""


def read(path: Path) -> Reading:
    """Reads a document as this engine does."""
    begin = time.process_time()
    try:
        api = read_api(path)
    except ApiDocumentError as error:
        return Reading(path.name, failure=str(error)[:300])
    seconds = time.process_time() - begin
    found = [each.operation for each in api.outcomes if each.served_as == "tool"]
    tools = [
        {
            "name": each.name,
            "description": each.description,
            "inputSchema": each.input_schema,
            "outputSchema": each.output_schema,
        }
        for each in found
    ]
    left_out = Counter(each.reason for each in api.outcomes if each.served_as == "nothing")
    return _judged(Reading(path.name, len(api.outcomes), seconds=seconds, left_out=left_out), tools)


def by_fastmcp(path: Path, python: Path, patience: float = PATIENCE) -> Reading:
    """Has FastMCP read a document."""
    reading = Reading(path.name)
    try:
        done = subprocess.run(
            [python, "-c", FASTMCP, path], capture_output=True, text=True, timeout=patience, check=False
        )
    except subprocess.TimeoutExpired:
        reading.failure = f"not read within {patience:g} s"
        return reading
    if done.returncode:
        reading.failure = (done.stderr.strip().splitlines() or ["it ended"])[-1][:300]
        return reading
    said = json.loads(done.stdout[done.stdout.index("{") :])
    reading.seconds = said["seconds"]
    return _judged(reading, said["tools"])


def _judged(reading: Reading, tools: Sequence[Mapping[str, Any]]) -> Reading:
    names: Counter[str] = Counter(each["name"] for each in tools)
    reading.tools = len(tools)
    for tool in tools:
        model = (tool["name"], tool.get("description") or "", tool["inputSchema"])
        reading.bytes += len(msgspec.json.encode(model))
        broken = set() if NAME.fullmatch(tool["name"]) else {"name"}
        broken |= {"name twice"} if names[tool["name"]] > 1 else set()
        broken |= REFUSED_AT_ROOT & tool["inputSchema"].keys()
        broken |= set() if tool["inputSchema"].get("type") == "object" else {"no object"}
        for schema in (tool["inputSchema"], tool.get("outputSchema") or {}):
            try:
                jsonschema_rs.meta.validate(schema)
            except (ValueError, jsonschema_rs.ReferencingError):
                broken.add("not valid")
            broken |= set(_refused(schema))
        reading.broken.update(broken)
    return reading


def _refused(schema: Any) -> Iterator[str]:
    """The keywords in a schema that hosts refuse."""
    pending = [(schema, False)]
    while pending:
        value, by_name = pending.pop()
        if isinstance(value, list):
            pending.extend((each, False) for each in value)
        elif isinstance(value, dict):
            for key, each in value.items():
                if by_name:
                    pending.append((each, False))
                elif key in REFUSED:
                    yield key
                elif key == "format" and each not in FORMATS:
                    yield "format"
                if not by_name and key not in DATA:
                    pending.append((each, key in BY_NAME))


def table(readings: Sequence[tuple[Reading, Reading | None]]) -> str:
    """The table, as Markdown."""
    titles = ("tools", "seconds", "KB", "rules broken")
    header = [
        "document",
        "operations",
        "tools",
        "left out",
        *titles[1:],
        *(f"FastMCP: {each}" for each in titles),
    ]
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for ours, other in readings:
        cells = [ours.name, str(ours.operations), *_cells(ours)]
        cells[3:3] = [_counted(ours.left_out)]
        lines.append(f"| {' | '.join([*cells, *(_cells(other) if other else [])])} |")
    return "\n".join(lines)


def _cells(reading: Reading) -> list[str]:
    if reading.failure:
        return [reading.failure, "", "", ""]
    return [
        str(reading.tools),
        f"{reading.seconds:.1f}",
        f"{reading.bytes / 1000:,.0f}",
        _counted(reading.broken),
    ]


def _counted(counter: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counter.most_common()) or "none"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--fastmcp", type=Path, metavar="PYTHON")
    parser.add_argument("--json", type=Path, metavar="FILE")
    words = parser.parse_args()
    readings = []
    for path in words.files:
        readings.append((read(path), by_fastmcp(path, words.fastmcp) if words.fastmcp else None))
        print(table(readings[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
        if words.json:
            words.json.write_text(json.dumps([[vars(one) for one in pair if one] for pair in readings]))
    print(table(readings))


if __name__ == "__main__":
    main()
