"""A result of another revision is passed on unread where that makes no difference."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_actors._eras.era import RESULT_STAMPS, Era, read_result
from mcp_actors._eras.legacy import LEGACY
from mcp_actors._eras.modern import MODERN
from mcp_actors.types import (
    Annotations,
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    CompleteResult,
    Completion,
    EmbeddedResource,
    GetPromptResult,
    Icon,
    ImageContent,
    PromptMessage,
    ReadResourceResult,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

ERAS: dict[str, Era] = {**LEGACY, **MODERN}
META = {"k": 1}
NOTES = Annotations(["user"], 0.5, "2026-01-01T00:00:00Z")
TEXT = TextResourceContents("t:", "text", mime_type="text/plain", meta=META)
BLOB = BlobResourceContents("b:", "AA==", meta=META)
BLOCKS: list[Any] = [
    TextContent("t", annotations=NOTES, meta=META, extra={"unknown": [1, None]}),
    ImageContent("AA==", "image/png", annotations=NOTES, meta=META),
    AudioContent("AA==", "audio/wav", annotations=NOTES, meta=META),
    EmbeddedResource(TEXT, annotations=NOTES, meta=META),
    EmbeddedResource(BLOB),
    ResourceLink("r:", "r", title="R", icons=[Icon("data:,")], size=1, annotations=NOTES, meta=META),
]
RESULTS: dict[str, Any] = {
    "tools/call": CallToolResult(BLOCKS, {"a": [1, None]}, is_error=True, meta=META, extra={"unknown": 1}),
    "prompts/get": GetPromptResult([PromptMessage("user", each) for each in BLOCKS], "d", meta=META),
    "resources/read": ReadResourceResult([TEXT, BLOB], meta=META),
    "completion/complete": CompleteResult(Completion(["a"], 1, False), meta=META),
}


def passed_unread(own: Era, other: Era, method: str, raw: dict[str, Any]) -> dict[str, Any]:
    """What a client of ``own`` is sent if nobody reads ``raw``."""
    kept = raw if other.asks_by_retry else {key: raw[key] for key in raw if key not in RESULT_STAMPS}
    return own.seal(kept, own.server_methods[method], {})


def passed_read(own: Era, other: Era, method: str, raw: dict[str, Any]) -> dict[str, Any]:
    """What it is sent if a result is read and written anew."""
    return own.seal(
        read_result(other, raw, own.server_methods[method].result), own.server_methods[method], {}
    )


@pytest.mark.parametrize("method", RESULTS)
@pytest.mark.parametrize("other", ERAS)
@pytest.mark.parametrize("own", [version for version, era in ERAS.items() if era.has_all_results])
def test_nothing_would_be_changed_by_reading_it(own: str, other: str, method: str) -> None:
    raw = ERAS[other].seal(RESULTS[method], ERAS[other].server_methods[method], {})
    read = passed_read(ERAS[own], ERAS[other], method, raw)
    assert passed_unread(ERAS[own], ERAS[other], method, raw) == read


def test_revisions_that_lack_a_part_of_results_read_them() -> None:
    assert [version for version, era in ERAS.items() if not era.has_all_results] == [
        "2024-11-05",
        "2025-03-26",
        "2025-06-18",
    ]
    link = CallToolResult([BLOCKS[-1]])
    raw = ERAS["2026-07-28"].seal(link, ERAS["2026-07-28"].server_methods["tools/call"], {})
    own, other = ERAS["2025-06-18"], ERAS["2026-07-28"]
    assert passed_unread(own, other, "tools/call", raw) != passed_read(own, other, "tools/call", raw)
