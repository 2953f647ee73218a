"""Names of upstreams: what is offered has exactly one name in the gateway, which leads back to it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_actors.gateway import Upstream
from mcp_actors.gateway.names import NameClaims, NameTable

# Few characters, so that prefixes, renames and names meet each other often.
NAMES = st.text("ab_", min_size=0, max_size=4)
PATTERNS = st.lists(st.text("ab_*?", min_size=1, max_size=3), max_size=2)


@st.composite
def tables(draw: st.DrawFn) -> NameTable:
    renames = draw(st.dictionaries(NAMES.filter(bool), NAMES.filter(bool), max_size=4))
    taken: dict[str, str] = {}
    for own, outside in renames.items():
        if outside not in taken.values():
            taken[own] = outside
    return NameTable(
        Upstream(
            name="u",
            target="stdio:none",
            prefix=draw(st.one_of(st.none(), NAMES)),
            rename=taken,
            include=draw(st.one_of(st.just(["*"]), PATTERNS)),
            exclude=draw(PATTERNS),
        )
    )


@given(tables(), NAMES)
def test_a_name_in_the_gateway_leads_back_to_what_it_was_made_of(table: NameTable, own: str) -> None:
    outside = table.outside(own)
    assert outside is None or table.own(outside) == own


@given(tables(), st.one_of(NAMES, NAMES.map(lambda name: f"u_{name}")))
def test_what_a_name_leads_to_has_that_name(table: NameTable, outside: str) -> None:
    own = table.own(outside)
    assert own is None or table.outside(own) == outside


@given(tables(), st.sets(NAMES))
def test_no_two_things_have_one_name(table: NameTable, names: set[str]) -> None:
    outside = [name for own in names if (name := table.outside(own)) is not None]
    assert len(set(outside)) == len(outside)


def make_table(**settings: object) -> NameTable:
    return NameTable(Upstream(name="u", target="stdio:none", **settings))  # type: ignore[arg-type]


def test_names_have_a_prefix_or_none_or_are_renamed() -> None:
    assert make_table().outside("add") == "u_add"
    assert make_table(prefix="").outside("add") == "add"
    assert make_table(prefix="my.").outside("add") == "my.add"
    assert make_table(rename={"add": "sum"}).outside("add") == "sum"
    assert make_table(rename={"add": "sum"}).own("u_add") is None
    # The prefix would give it the name of what is renamed.
    assert make_table(prefix="", rename={"add": "sum"}).outside("sum") is None


def test_patterns_say_what_is_offered() -> None:
    table = make_table(include=["get_*", "add"], exclude=["*_secret"])
    assert [each for each in ("get_a", "add", "adds", "get_secret") if table.outside(each)] == [
        "get_a",
        "add",
    ]
    assert table.own("u_get_secret") is None
    assert make_table(include=[]).outside("add") is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rename": {"a": "c", "b": "c"}}, "renamed to the same one"),
        ({"rename": {"a": ""}}, "renamed to nothing"),
        ({"include": "a*"}, "write a list of patterns"),
    ],
)
def test_names_that_cannot_be_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_table(**settings)


@given(st.lists(st.tuples(st.sampled_from("uvw"), st.sampled_from("ab"), st.booleans()), max_size=30))
def test_a_name_is_its_owners_until_no_list_of_the_owner_has_it(steps: list[tuple[str, str, bool]]) -> None:
    claims = NameClaims("tool")
    model: dict[str, list[str]] = {"a": [], "b": []}
    for upstream, name, claims_it in steps:
        holders = model[name]
        if claims_it:
            assert claims.claim(name, upstream, name) == (not holders or holders[0] == upstream)
            if not holders or holders[0] == upstream:
                holders.append(upstream)
        elif holders:
            claims.release(name)
            holders.pop()
        owner = claims.owners.get(name)
        assert (None if owner is None else owner.upstream) == (holders[0] if holders else None)
