"""Pages and cursors: every entry once, through any change of the list, and no cursor but our own."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_actors._server.registry import page
from mcp_actors.errors import RpcError


@attrs.frozen
class Row:
    serial: int
    key: str


def rows(count: int, first: int = 1) -> list[Row]:
    return [Row(number, f"row {number}") for number in range(first, first + count)]


def walk(entries: list[Row], size: int) -> list[str]:
    seen: list[str] = []
    params: dict[str, object] = {}
    while True:
        shown, cursor = page(entries, params, kind="rows", size=size)
        assert 0 < len(shown) <= size or not entries
        seen += [row.key for row in shown]
        if cursor is None:
            return seen
        params = {"cursor": cursor}


@given(count=st.integers(0, 60), size=st.integers(1, 20))
def test_walking_all_pages_shows_every_entry_once_in_order(count: int, size: int) -> None:
    entries = rows(count)
    assert walk(entries, size) == [row.key for row in entries]


@given(data=st.data(), count=st.integers(1, 30), size=st.integers(1, 7))
def test_what_stays_in_a_changing_list_is_shown_exactly_once(
    data: st.DataObject, count: int, size: int
) -> None:
    entries = rows(count)
    always = {row.key for row in entries}
    seen: list[str] = []
    params: dict[str, object] = {}
    next_serial = count + 1
    while True:
        shown, cursor = page(entries, params, kind="rows", size=size)
        seen += [row.key for row in shown]
        if cursor is None:
            break
        params = {"cursor": cursor}
        gone = data.draw(st.sets(st.sampled_from(entries), max_size=3)) if entries else set()
        entries = [row for row in entries if row not in gone]
        always -= {row.key for row in gone}
        if data.draw(st.booleans()) and next_serial < 60:
            entries.append(Row(next_serial, f"row {next_serial}"))
            next_serial += 1
    assert len(set(seen)) == len(seen)
    assert always <= set(seen)


def test_an_entry_that_was_removed_and_added_again_does_not_end_the_list_early() -> None:
    entries = rows(4)
    _, cursor = page(entries, {}, kind="rows", size=2)
    moved = [entries[0], entries[2], entries[3], Row(5, "row 2")]
    shown, _ = page(moved, {"cursor": cursor}, kind="rows", size=10)
    assert shown == []  # the entry the cursor names is last now, and all before it were there to be seen


def test_a_cursor_means_the_same_in_another_process_with_another_order() -> None:
    _, cursor = page(rows(4), {}, kind="rows", size=2)
    other = [Row(1, "row 4"), Row(2, "row 1"), Row(3, "row 2"), Row(4, "row 3")]
    shown, _ = page(other, {"cursor": cursor}, kind="rows", size=10)
    assert [row.key for row in shown] == ["row 3"]


def test_a_cursor_at_the_end_of_a_list_that_shrank_gives_an_empty_last_page() -> None:
    _, cursor = page(rows(3), {}, kind="rows", size=2)
    assert page(rows(1), {"cursor": cursor}, kind="rows", size=2) == ([], None)


def test_null_and_absent_cursor_mean_the_first_page() -> None:
    assert page(rows(3), {"cursor": None}, kind="rows", size=2) == page(rows(3), {}, kind="rows", size=2)


@pytest.mark.parametrize(
    "cursor", ["", "=", "x", "ÿ", "bm90IGpzb24", "WyJyb3dzIiwtMSwiYSJd", "W10", 0, 7, True, [], {}, "=" * 99]
)
def test_anything_but_our_own_cursor_is_refused(cursor: object) -> None:
    with pytest.raises(RpcError, match="cursor") as caught:
        page(rows(3), {"cursor": cursor}, kind="rows", size=2)
    assert caught.value.code == -32602


@given(st.text(max_size=40))
def test_any_text_but_our_own_cursor_is_refused(text: str) -> None:
    with pytest.raises(RpcError) as caught:
        page(rows(3), {"cursor": text}, kind="rows", size=2)
    assert caught.value.code == -32602


def test_the_cursor_of_another_list_is_refused() -> None:
    _, cursor = page(rows(3), {}, kind="tools", size=2)
    with pytest.raises(RpcError, match="invalid cursor"):
        page(rows(3), {"cursor": cursor}, kind="prompts", size=2)


def test_a_cursor_shows_no_name_in_clear_text_and_survives_any_key() -> None:
    entries = [Row(1, "ключ/☃"), Row(2, "b")]
    _, cursor = page(entries, {}, kind="rows", size=1)
    assert cursor is not None
    assert cursor.isascii()
    assert page(entries, {"cursor": cursor}, kind="rows", size=1) == ([entries[1]], None)
