"""The rules for words as tests: what docstrings say, what things are called, how much one class holds.

Every rule of ``documentation_rules.py`` is run on the real sources and on a snippet that breaks it, as in
``test_architecture.py``. The complaints known today stand in ``documentation_rules.py``; one that is no complaint any
more fails the test as well, so that the list can only shrink.

``python tests/test_documentation.py [checkout]`` prints how many complaints each rule has, here or in another checkout.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from documentation_rules import (
    ATTRIBUTES_OF_A_CLASS,
    KNOWN,
    MANY_ATTRIBUTES,
    ROOT,
    Module,
    Rule,
    checked_by,
    class_names_are_used_once,
    classes_hold_little,
    comparisons_of_eras,
    docstrings_are_no_questions,
    load_sources,
    names_are_no_metaphors,
    own_attributes,
    public_callables_name_their_errors,
    references_lead_to_what_exists,
    sections_are_well_formed,
    table,
)

pytestmark = pytest.mark.slow

MANY = ", ".join(f"self.a{number}" for number in range(ATTRIBUTES_OF_A_CLASS + 1))
# Every rule with a module that breaks it: (its name, its text).
RULES: list[tuple[Rule, str, str]] = [
    (references_lead_to_what_exists, "mcp_actors/server.py", "# As protocol.md has it."),
    (references_lead_to_what_exists, "mcp_actors/server.py", "# Never more (protocol §6.4)."),
    (references_lead_to_what_exists, "README.md", "see findings.md"),
    (references_lead_to_what_exists, "mcp_actors/server.py", "# §12.1 #5: an error of the protocol."),
    (references_lead_to_what_exists, "mcp_actors/server.py", "# RFC 9110 says much. This is §2.3"),
    (public_callables_name_their_errors, "mcp_actors.a", "def f(): raise ValueError('no')"),
    (public_callables_name_their_errors, "mcp_actors.a", "def f():\n    'Makes.'\n    raise KeyError"),
    (
        public_callables_name_their_errors,
        "mcp_transports.a",
        "class A:\n    async def f(self): raise trio.BrokenResourceError('no')",
    ),
    (
        public_callables_name_their_errors,
        "mcp_actors.a",
        "class A:\n    'A.'\n    def __init__(self): raise TypeError('no')",
    ),
    (
        public_callables_name_their_errors,
        "mcp_actors.a",
        "class A:\n    'A.'\n    @x.validator\n    def _check(self): raise ValueError('no')",
    ),
    (
        public_callables_name_their_errors,
        "mcp_actors.a",
        "def bad() -> RpcError: ...\ndef f(): raise bad()",
    ),
    (
        sections_are_well_formed,
        "mcp_actors.a",
        'def f(x):\n    """F.\n\n    Args:\n        y: no parameter.\n    """',
    ),
    (
        sections_are_well_formed,
        "mcp_actors.a",
        'def f(x):\n    """F.\n\n    Args:\n        x, a number\n    """',
    ),
    (sections_are_well_formed, "mcp_actors.a", 'def f(x):\n    """F.\n\n    Raises: ValueError\n    """'),
    (sections_are_well_formed, "mcp_actors.a", 'def f(x):\n    """F.\n\n    Raises:\n    """'),
    (
        sections_are_well_formed,
        "mcp_actors.a",
        'def f(x):\n    """F.\n\n    Parameters:\n        x: 1.\n    """',
    ),
    (docstrings_are_no_questions, "mcp_actors._a", '"""What a peer may do."""'),
    (docstrings_are_no_questions, "mcp_actors._a", 'class A:\n    def _f(self): "How: so."'),
    (names_are_no_metaphors, "mcp_actors._switchboard", ""),
    (names_are_no_metaphors, "mcp_actors._a", "class _Reception: ..."),
    (names_are_no_metaphors, "mcp_actors._a", "def owe_pong(): ..."),
    (names_are_no_metaphors, "mcp_actors._a", "class A:\n    def f(self): self._goodbyes = 1"),
    (names_are_no_metaphors, "mcp_actors._a", "class A:\n    def settle(self): ..."),
    (class_names_are_used_once, "mcp_actors._a", "class A:\n    class A: ..."),
    (
        classes_hold_little,
        "mcp_actors._a",
        f"class A:\n    def f(self): {MANY} = range({ATTRIBUTES_OF_A_CLASS + 1})",
    ),
    (comparisons_of_eras, "mcp_actors.client", "x = era.name == 'modern'"),
    (comparisons_of_eras, "mcp_actors.client", "x = era not in ('legacy', 'auto')"),
    (comparisons_of_eras, "mcp_transports.http", "match era:\n    case 'legacy': ..."),
]
EACH_RULE = pytest.mark.parametrize(
    "rule", list(dict.fromkeys(rule for rule, _, _ in RULES)), ids=lambda rule: rule.__name__
)
# What looks like a breach and is none.
GOOD = '''"""Whether it holds, by RFC 6570 §2.3 and §2.4.1 (MCP 2025-11-25, Server Features, Tools)."""

from attrs import define, frozen


class Outlet:
    @property
    def longest(self): ...
    def post(self): ...
    def settle(self): ...


class Answers(Outlet):
    """Raises `ValueError` when it is made of nothing."""

    a: ClassVar[int] = 1

    def __init__(self, nothing, *, era, **more):
        """Args:
            nothing: the thing.
            era, more: two others,
                of which one goes on.

        Raises:
            ValueError: for nothing.
            trio.Cancelled: else.
        """
        if era.sends:
            raise ValueError("no")
        try:
            self.name = "legacy"
        except KeyError as error:
            raise error

    def settle(self):
        def inner():
            raise KeyError("an inner function is no public one")

    def _private(self):
        raise KeyError("nor is this")

    def abstract(self):
        raise NotImplementedError


@frozen
class Value:
    """Values may have as many fields as they need."""

    a: int; b: int; c: int; d: int; e: int; f: int; g: int; h: int; i: int; j: int; k: int; l: int; m: int


class Alike:
    __slots__ = ("longest",)
    def post(self): ...
    def settle(self): ...
'''


@EACH_RULE
def test_the_words_obey(rule: Rule) -> None:
    assert sorted(set(checked_by(rule)) - KNOWN[rule.__name__]) == []


@EACH_RULE
def test_what_is_known_is_still_true(rule: Rule) -> None:
    assert sorted(KNOWN[rule.__name__] - set(checked_by(rule))) == []


@pytest.mark.parametrize(("rule", "name", "text"), RULES, ids=lambda value: getattr(value, "__name__", ""))
def test_the_rule_can_fail(rule: Rule, name: str, text: str) -> None:
    assert rule([Module(name, text)]) != []


@EACH_RULE
def test_the_rule_lets_good_words_pass(rule: Rule) -> None:
    assert rule([Module("mcp_actors.server", GOOD)]) == []


def test_few_classes_hold_much_and_each_has_a_reason() -> None:
    assert len(MANY_ATTRIBUTES) <= 5
    assert all(MANY_ATTRIBUTES.values())
    large = {
        name
        for module in load_sources()
        for name, node in module.classes()
        if len(own_attributes(node)) > ATTRIBUTES_OF_A_CLASS
    }
    assert set(MANY_ATTRIBUTES) <= large


if __name__ == "__main__":
    print(table(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT))
