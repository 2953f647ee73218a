"""URIs matched against the templates of RFC 6570 that they were written from."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_actors._wire.uri_template import LONGEST_URI, MAX_TEMPLATE, MAX_VARIABLES, UriTemplate

MATCHES: list[tuple[str, str, dict[str, str] | None]] = [
    ("config://app", "config://app", {}),
    ("config://app", "config://app2", None),
    ("", "", {}),
    ("weather://{city}/{day}", "weather://Paris/monday", {"city": "Paris", "day": "monday"}),
    ("weather://{city}/{day}", "weather://Paris/monday/x", None),
    ("weather://{city}/{day}", "weather://Paris/", None),
    ("weather://{city}/{day}", "weather://Saint%20Malo/a%2Fb", {"city": "Saint Malo", "day": "a/b"}),
    ("weather://{city}", "weather://Zürich", {"city": "Zürich"}),
    ("é{x}", "%C3%A9y", {"x": "y"}),
    ("mail:{who}", "mail:bob@example.com", {"who": "bob@example.com"}),
    ("{x}", "a?b", None),
    ("{x}", "a#b", None),
    ("a{x}a", "aa", None),
    ("aa{x}aa", "aaa", None),
    ("aa{/x}aa", "aaa", None),
    ("aa{/x}aa", "aaaa", {}),
    ("file://{+path}", "file:///etc/a b", {"path": "/etc/a b"}),
    ("file://{+path}", "file://", None),
    ("{+path}/edit", "a/edit/edit", {"path": "a/edit"}),
    ("{+path}.{ext}", "a/b.tar.gz", {"path": "a/b.tar", "ext": "gz"}),
    ("{+a}-{b}", "x-y/z-w", {"a": "x-y/z", "b": "w"}),
    ("{a}-{b}", "x-y-z", {"a": "x-y", "b": "z"}),
    ("{a}{b}", "xyz", {"a": "xy", "b": "z"}),
    ("{a}{b}", "x", None),
    ("{a}{b}", "x%C3%A9", {"a": "x", "b": "é"}),
    ("{a}{b}", "%C3%A9", None),  # one character cannot be two
    ("{a}{b}", "%41%42", {"a": "A", "b": "B"}),
    ("{x,y}", "1,2", {"x": "1", "y": "2"}),
    ("{x,y}", "1", {"x": "1"}),
    ("{list}", "1,2", {"list": "1,2"}),
    ("{+x,y}", "a/b,c/d", {"x": "a/b", "y": "c/d"}),
    ("f{/p}", "f/a/b", None),
    ("f{/p*}", "f/a/b", {"p": "a/b"}),
    ("f{/p*}", "f", {}),
    ("f{/a}{/b*}", "f/1/2/3", {"a": "1", "b": "2/3"}),
    ("f{/a,b}", "f/1", {"a": "1"}),
    ("f{/a}/end", "f/end", {}),
    ("f{/a}/end", "f/x/end", {"a": "x"}),
    ("{name}{.ext}", "a.b.c", {"name": "a.b", "ext": "c"}),
    ("{name}{.ext}", "abc", {"name": "abc"}),
    ("x{.a,b}", "x.1.2", {"a": "1", "b": "2"}),
    ("x{;a,b}", "x;b=1;a", {"b": "1", "a": ""}),
    ("x{;a}", "x;c=1", None),
    ("x{?q,r}", "x?r=2&q=1", {"r": "2", "q": "1"}),
    ("x{?q,r}", "x", {}),
    ("x{?q}", "x?", None),
    ("x{?q}", "x?q=", {"q": ""}),
    ("x{?q}", "x?q=a+b%26c", {"q": "a+b&c"}),
    ("x{?q}", "x?q=1&q=2", None),
    ("x{?q}", "x?z=1", None),
    ("x{?q*}", "x?q=1&q=2", {"q": "1,2"}),
    ("x{?q}{#f}", "x?q=1#a/b?c", {"q": "1", "f": "a/b?c"}),
    ("x{?a}{&b}", "x?b=2&a=1", {"b": "2", "a": "1"}),
    ("x?fixed=1{&b}", "x?fixed=1&b=2", {"b": "2"}),
    ("{+path}{?q}", "a/b?q=1", {"path": "a/b", "q": "1"}),
    ("{a}/{a}", "x/x", {"a": "x"}),
    ("{a}/{a}", "x/y", None),
    ("{a:1}/{a}", "p/pq", {"a": "pq"}),
    ("{a:1}/{a}", "q/pq", None),
    ("{a:2}", "abc", None),
    ("{a:2}", "ab", {"a": "ab"}),
    ("{x}", "%ff", None),  # no UTF-8
    ("{x}", "100%", {"x": "100%"}),
    ("{a.b}", "1", {"a.b": "1"}),
]


@pytest.mark.parametrize(("text", "uri", "values"), MATCHES)
def test_matching(text: str, uri: str, values: dict[str, str] | None) -> None:
    assert UriTemplate(text).match(uri) == values


@pytest.mark.parametrize(
    "text",
    [
        *(
            "{",
            "}",
            "{}",
            "{a",
            "a}",
            "{a b}",
            "{a{b}}",
            "{=a}",
            "{!a}",
            "{|a}",
            "{a:0}",
            "{a:10000}",
            "{a:}",
        ),
        *(
            "{a*:3}",
            "{a,}",
            "{,a}",
            "{a..b}",
            "{.}",
            "{+}",
            "{a-b}",
            "x y",
            "a%zz",
            "<x>",
            "{a}\n",
            "{%4}",
            "{é}",
        ),
    ],
)
def test_a_malformed_template_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="URI template"):
        UriTemplate(text)


def test_bounds() -> None:
    many = ",".join(f"v{i}" for i in range(MAX_VARIABLES))
    assert len(UriTemplate(f"{{{many}}}").variables) == MAX_VARIABLES
    with pytest.raises(ValueError, match="64 variables"):
        UriTemplate(f"{{{many}}}{{x}}")
    assert UriTemplate("x" * MAX_TEMPLATE).match("x" * MAX_TEMPLATE) == {}
    with pytest.raises(ValueError, match="4096 characters"):
        UriTemplate("x" * (MAX_TEMPLATE + 1))


def test_variables_are_listed_once_in_order() -> None:
    assert UriTemplate("{b}/{a}{?b,c*,d:3}").variables == ("b", "a", "c", "d")


def test_a_template_is_its_text() -> None:
    template = UriTemplate("x{y}")
    assert template == UriTemplate("x{y}")
    assert template != UriTemplate("x{z}")
    assert template != "x{y}"
    assert {template: 1}[UriTemplate("x{y}")] == 1
    assert str(template) == "x{y}"
    assert repr(template) == "UriTemplate('x{y}')"


HOSTILE = [
    "a" * 1_000_000,
    "a,/" * 333_333,
    "%41" * 333_333 + "/",
    "?" * 1_000_000,
    "-" * 999_999 + "/",
    "%" * 1_000_000,
]


@pytest.mark.parametrize(
    "text",
    [
        "{a}{b}{c}",
        "{a}{b}{c}x",
        "{+a}{+b}{+c}{d}",
        "{+a}a{+b}a{+c}a{d}",
        "{a}-{b}-{c}-{d}/",
        "{a,b,c}{/d*}{?e,f}",
        "".join(f"{{+v{i}}}a" for i in range(MAX_VARIABLES - 1)) + "{?q}",
    ],
)
def test_a_hostile_uri_is_answered_in_linear_time(text: str) -> None:
    # With backtracking, any of these would run for years: that they end is the assertion, and what they say is checked.
    template = UriTemplate(text)
    for uri in HOSTILE:
        values = template.match(uri)
        assert values is None or set(values) <= set(template.variables)


value = st.text(min_size=1, max_size=12)
safe = st.text(alphabet="abcXYZ019-_~", min_size=1, max_size=8)


# Templates of two variables, each with what the RFC makes of two strings that are percent-encoded already.
EXPANSIONS: dict[str, Callable[[str, str], str]] = {
    "s://{a}/{b}": lambda a, b: f"s://{a}/{b}",
    "s://h{/a,b}": lambda a, b: f"s://h/{a}/{b}",
    "s://h{?a,b}": lambda a, b: f"s://h?a={a}&b={b}",
    "s://h{;a,b}": lambda a, b: f"s://h;a={a};b={b}",
    "s://{a}{?b}": lambda a, b: f"s://{a}?b={b}",
    "s://{a,b}": lambda a, b: f"s://{a},{b}",
    "s://{a}{#b}": lambda a, b: f"s://{a}#{b}",
}


@given(value, value)
def test_the_values_of_an_expansion_are_found_again(a: str, b: str) -> None:
    for text, expand in EXPANSIONS.items():
        uri = expand(quote(a, safe=""), quote(b, safe=""))
        assert UriTemplate(text).match(uri) == {"a": a, "b": b}, text


# Templates that many values give the same URI for, each with its expansion.
AMBIGUOUS: dict[str, Callable[[str, str, str], str]] = {
    "{a}{b}{c}": lambda a, b, c: f"{a}{b}{c}",
    "{a}-{b}-{c}": lambda a, b, c: f"{a}-{b}-{c}",
    "{+a}a{b}{c}": lambda a, b, c: f"{a}a{b}{c}",
    "x{.a}{.b}{c}": lambda a, b, c: f"x.{a}.{b}{c}",
}


@given(safe, safe, safe)
def test_an_ambiguous_split_gives_values_that_expand_to_the_same_uri(a: str, b: str, c: str) -> None:
    for text, expand in AMBIGUOUS.items():
        uri = expand(a, b, c)
        values = UriTemplate(text).match(uri)
        assert values is not None, text
        assert expand(values["a"], values["b"], values["c"]) == uri


@given(st.lists(safe, min_size=1, max_size=4))
def test_lists_come_back_with_their_separators(items: list[str]) -> None:
    for text, first, separator, name in (
        ("x{/a*}", "x/", "/", ""),
        ("x{?a}", "x?a=", ",", ""),
        ("{a}", "", ",", ""),
        ("x{?a*}", "x?a=", "&", "a="),
        ("x{;a*}", "x;a=", ";", "a="),
    ):
        uri = first + f"{separator}{name}".join(items)
        # A list whose items have the name of the variable comes back as if it had been one value.
        found = "," if name else separator
        assert UriTemplate(text).match(uri) == {"a": found.join(items)}, text


@given(st.text(alphabet="{}+#./;?&,:*%ab1é ", max_size=14), st.text(alphabet="{}+#./;?&=,%ab1é", max_size=14))
def test_any_template_and_any_uri_end_in_a_verdict(text: str, uri: str) -> None:
    try:
        template = UriTemplate(text)
    except ValueError:
        return
    values = template.match(uri)
    assert values is None or set(values) <= set(template.variables)


def test_a_uri_is_matched_up_to_its_longest() -> None:
    template = UriTemplate("x://{name}")
    name = "n" * (LONGEST_URI - len("x://"))
    assert template.match(f"x://{name}") == {"name": name}
    assert template.match(f"x://{name}n") is None
