"""What a skill is made of comes from files and from peers: what is refused of it, and what is taken."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_actors._wire.skill_format import (
    check_entry,
    check_path,
    digest_of,
    file_uri,
    is_same,
    path_of,
    read_frontmatter,
    relative,
    root_of,
)

ROOT = "skill://acme/refunds"
HEAD = "name: refunds\ndescription: Refund a customer\n"


def manifest(head: str = HEAD, body: str = "Do it.\n") -> bytes:
    return f"---\n{head}---\n{body}".encode()


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "..",
        "../x",
        "a/../../x",
        "./a",
        "a//b",
        "a/",
        "a\\b",
        "..\\x",
        "C:x",
        "C:/x",
        "file.txt:stream",
        "nul",
        "a/CON.md",
        "com1",
        "a\0b",
        "a\nb",
        ".. /x",
        "%2e%2e/x",
        "%252e%252e",
        "a%00",
    ],
)
def test_a_path_that_leads_away_or_names_no_file_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        check_path(path)


@pytest.mark.parametrize(
    "path", ["SKILL.md", "a/b/c.md", "Ünïcode name.md", "100%.md", "a#b?c.md", ".hidden"]
)
def test_a_path_is_the_same_after_its_uri(path: str) -> None:
    check_path(path)
    uri = file_uri(ROOT, path)
    assert uri.isascii()
    assert path_of(ROOT, uri) == path


@pytest.mark.parametrize(
    "uri",
    [
        "skill://other/refunds/SKILL.md",
        "skill://evil/refunds/SKILL.md",
        "skill://acme/refunds",
        "skill://acme/refunds/",
        "skill://acme/refundsx/a.md",
        "skill://acme/refunds/../secret",
        "skill://acme/refunds/%2e%2e/secret",
        "skill://acme/refunds/%252e%252e/secret",
        "skill://acme/refunds/a%2Fb",
        "skill://acme/refunds/a%5Cb",
        "skill://acme/refunds/nul",
        "skill://acme/refunds/a?b",
        "skill://acme/refunds/a#b",
        "skill://acme/refunds/%ff",
        "file:///etc/passwd",
        f"{ROOT}/{'a' * 1024}",
    ],
)
def test_a_uri_that_is_no_file_of_the_skill_is_refused(uri: str) -> None:
    with pytest.raises(ValueError, match=r"skill|file|text|slash"):
        path_of(ROOT, uri)


@pytest.mark.parametrize(
    "uri",
    [
        "skill://refunds",
        "refunds/SKILL.md",
        "skill://SKILL.md",
        "skill://acme/Refunds/SKILL.md",
        "skill://acme/re--funds/SKILL.md",
        "skill://acme/-refunds/SKILL.md",
        "skill://acme//refunds/SKILL.md",
        "skill://acme/../refunds/SKILL.md",
        "skill://acme/refunds/skill.md",
        "skill://acme/refunds/SKILL.md?x",
        "skill://[acme/refunds/SKILL.md",
        f"skill://{'a/' * 600}refunds/SKILL.md",
    ],
)
def test_a_uri_that_names_no_skill_is_refused(uri: str) -> None:
    with pytest.raises(ValueError, match=r"SKILL|skill|IPv6"):
        root_of(uri)


@pytest.mark.parametrize("uri", [f"{ROOT}/SKILL.md", "skill://x/SKILL.md", "github://o/r/s/refunds/SKILL.md"])
def test_a_skill_has_the_folder_of_its_manifest_as_its_root(uri: str) -> None:
    assert root_of(uri) == uri.removesuffix("/SKILL.md")


def test_a_reference_is_resolved_as_a_file_system_does_it() -> None:
    assert relative("./references/../a.md") == "a.md"
    with pytest.raises(ValueError, match="no path below"):
        relative("references/../../a.md")


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_frontmatter_is_yaml_as_json_has_it(mark: str, ending: str) -> None:
    head = f"{HEAD}license: no\nmetadata:\n  version: 1.0\n  since: 2026-01-02\nflags: [true, ~, 010]\n"
    text = mark + manifest(head).decode().replace("\n", ending)
    assert read_frontmatter(text.encode()) == {
        "name": "refunds",
        "description": "Refund a customer",
        "license": "no",
        "metadata": {"version": 1.0, "since": "2026-01-02"},
        "flags": [True, None, 10],
    }


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"# Refunds\n", "frontmatter"),
        (b"---\nname: refunds\n", "frontmatter"),
        (b"\xff\xfe", "UTF-8"),
        (manifest("a" * 70_000), "frontmatter"),
        (manifest("name: refunds\n"), "description"),
        (manifest(HEAD + "description: another\n"), "twice"),
        (manifest("name: Refunds\ndescription: d\n"), "name"),
        (manifest(f"name: {'a' * 65}\ndescription: d\n"), "name"),
        (manifest("name: refunds\ndescription: ''\n"), "description"),
        (manifest(f"name: refunds\ndescription: {'d' * 1025}\n"), "description"),
        (manifest("- a\n"), "mapping"),
        (manifest(HEAD + "a: &a [*a]\n"), "mapping"),
        (manifest(HEAD + "a: " + "[" * 30 + "]" * 30 + "\n"), "mapping"),
        (manifest(HEAD + "a: !!python/object:os.system []\n"), "python"),
        (manifest(HEAD + "? [a]\n: b\n"), "text"),
        (manifest("name: [\n"), "expected"),
    ],
)
def test_what_is_no_frontmatter_is_refused(content: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_frontmatter(content)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (1, 1.0, True),
        (1, True, False),
        ({"a": [1]}, {"a": [1]}, True),
        ({"a": None}, {}, False),
        ([1, 2], [1], False),
        ("1", 1, False),
    ],
)
def test_values_are_compared_as_json_has_them(one: Any, other: Any, same: bool) -> None:
    assert is_same(one, other) == same


def entry(**members: Any) -> dict[str, Any]:
    file = {"uri": f"{ROOT}/SKILL.md", "digest": digest_of(b""), "size": 0}
    whole = {
        "uri": f"{ROOT}/SKILL.md",
        "frontmatter": {"name": "refunds", "description": "d"},
        "resources": [file],
    }
    return {**whole, **members}


def file(name: str, **members: Any) -> dict[str, Any]:
    return {"uri": f"{ROOT}/{name}", "digest": digest_of(b""), "size": 0, **members}


def test_an_entry_is_taken() -> None:
    assert check_entry(entry()) == ROOT
    assert check_entry(entry(resources="dynamic")) == ROOT


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "uri"),
        (entry(uri="skill://refunds"), "URI"),
        (entry(frontmatter=None), "frontmatter"),
        (entry(frontmatter={"name": "other", "description": "d"}), "called"),
        (entry(resources=None), "resources"),
        (entry(resources="none"), "resources"),
        (entry(resources=[]), "SKILL.md"),
        (entry(resources=[file("a.md")]), "SKILL.md"),
        (entry(resources=[file("SKILL.md"), file("SKILL.md")]), "twice"),
        (entry(resources=[file("SKILL.md"), file("%53KILL.md")]), "twice"),
        (entry(resources=[file("SKILL.md"), file("../../etc")]), "path"),
        (entry(resources=[file("SKILL.md"), {"uri": "file:///etc/passwd"}]), "folder"),
        (entry(resources=[file("SKILL.md", size=-1)]), "size"),
        (entry(resources=[file("SKILL.md", size=True)]), "size"),
        (entry(resources=[file("SKILL.md", size=None)]), "size"),
        (entry(resources=[file("SKILL.md", digest="sha256:" + "A" * 64)]), "digest"),
        (entry(resources=[file("SKILL.md", digest="md5:" + "a" * 32)]), "digest"),
    ],
)
def test_an_entry_that_must_not_be_used_is_refused(value: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_entry(value)
