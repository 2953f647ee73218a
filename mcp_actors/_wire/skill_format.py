"""The format of skills (SEP-2640), for both sides: URIs, paths of files, frontmatter, digests and limits.

A skill is a folder of files with a ``SKILL.md`` in it. Its root is the URI of that file without ``/SKILL.md``, the last
segment of the root is its name, and each other file has its path behind the root. What a skill is made of comes from
files and from peers: nothing here trusts a path, a URI or the size of a text.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from mcp_actors._wire.uri_template import leads_away
from mcp_actors._wire.yaml_text import is_within, load_yaml

__all__ = [
    "DIRECTORY",
    "LONGEST_SKILL_URI",
    "MANIFEST",
    "MOST_BYTES",
    "MOST_FILES",
    "SKILLS",
    "check_entry",
    "check_path",
    "check_published",
    "digest_of",
    "file_uri",
    "is_same",
    "path_of",
    "read_frontmatter",
    "relative",
    "root_of",
]

SKILLS = "io.modelcontextprotocol/skills"
"""The id of the extension."""
MANIFEST = "SKILL.md"
"""The file that makes a folder a skill."""
DIRECTORY = "inode/directory"
"""The type of a resource that is a directory."""

MOST_FILES = 512
"""Files of one skill, ``SKILL.md`` included (SEP-2640, Limits)."""
MOST_BYTES = 16 * 1024 * 1024
"""Bytes of the files of one skill together (SEP-2640, Limits)."""
LONGEST_SKILL_URI = 1_024
"""Characters of the URI of a file. Cursors carry one."""

# Bytes of a frontmatter, the JSON values in it, and their levels of nesting. A description has 1,024 characters.
_LONGEST_FRONTMATTER = 64 * 1024
_MOST_VALUES, _MOST_LEVELS = 1_000, 20
# Agent Skills: the rules for a name, and characters of other texts.
_NAME = re.compile(r"(?!.*--)[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?")
_LONGEST_DESCRIPTION = 1_024
_LONGEST_COMPATIBILITY = 500
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_FRONTMATTER = re.compile(r"\ufeff?---[ \t]*\r?\n(.*?\r?\n)?---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
# What a segment of a URI may have as it is (RFC 3986 section 3.3), without what has a meaning in an authority.
_PLAIN = "!$&'()*+,;="


def digest_of(content: bytes) -> str:
    """Returns the digest of a file's bytes as an entry has it."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


# -- URIs and paths ------------------------------------------------------------------------------------------------


def check_path(path: str) -> None:
    """Checks a path of a file below the root of a skill.

    Raises:
        ValueError: It leads out of the skill, or names no file on some system that a client may write it to.
    """
    parts = path.split("/")
    if not path or any(each in ("", ".", "..") for each in parts):
        raise ValueError(f"{path!r:.200} is no path below the folder of the skill")
    # Windows takes what stands behind a colon for a stream of the file.
    if "\\" in path or ":" in path or not path.isprintable() or any(leads_away(each) for each in parts):
        raise ValueError(f"{path!r:.200} is no name of a file on every system")


def file_uri(root: str, path: str) -> str:
    """Returns the URI of a file; raises `ValueError` if it would be too long."""
    uri = f"{root}/{'/'.join(quote(each, safe=_PLAIN) for each in path.split('/'))}"
    if len(uri) > LONGEST_SKILL_URI:
        raise ValueError(f"the URI {uri:.80}… has more than {LONGEST_SKILL_URI:,} characters")
    return uri


def root_of(uri: str) -> str:
    """Returns the root of the skill that a URI names.

    Raises:
        ValueError: It is not the URI of a ``SKILL.md`` in a folder that is called like a skill.
    """
    root, slash, name = uri.rpartition("/")
    parts = urlsplit(uri)
    segments = [parts.netloc, *parts.path.split("/")[1:]]
    if len(uri) > LONGEST_SKILL_URI or not slash or name != MANIFEST or not parts.scheme:
        raise ValueError(f"{uri!r:.200} is not the URI of a {MANIFEST}")
    if parts.query or parts.fragment or any(leads_away(each) for each in segments) or "" in segments[1:]:
        raise ValueError(f"{uri!r:.200} is not the URI of a skill")
    if _NAME.fullmatch(root.rpartition("/")[2]) is None:
        raise ValueError(f"{uri!r:.200}: the folder of the {MANIFEST} is not called like a skill")
    return root


def path_of(root: str, uri: str) -> str:
    """Returns the path of a file of a skill, decoded.

    Raises:
        ValueError: It is not a file in the folder of the skill.
    """
    if len(uri) > LONGEST_SKILL_URI or not uri.startswith(f"{root}/"):
        raise ValueError(f"{uri!r:.200} is not in the folder of the skill")
    encoded = uri[len(root) + 1 :]
    if "?" in encoded or "#" in encoded:
        raise ValueError(f"{uri!r:.200} is no file")
    try:
        path = "/".join(unquote(each, errors="strict") for each in encoded.split("/"))
    except UnicodeDecodeError:
        raise ValueError(f"{uri!r:.200} is no text") from None
    check_path(path)
    if path.count("/") != encoded.count("/"):
        raise ValueError(f"{uri!r:.200} has a slash in a name")
    return path


def relative(path: str) -> str:
    """Returns a reference inside of a skill as a path below its root, as a file system would resolve it.

    Raises:
        ValueError: It leads out of the skill.
    """
    resolved = posixpath.normpath(path)
    check_path(resolved)
    return resolved


# -- what a skill says of itself -------------------------------------------------------------------------------------


def read_frontmatter(content: bytes) -> dict[str, Any]:
    """Returns the frontmatter of a ``SKILL.md`` as JSON values.

    Raises:
        ValueError: It has none, or one that is no skill's; the text says why.
        ImportError: The library for YAML is not installed.
    """
    try:
        text = content[: 4 * _LONGEST_FRONTMATTER].decode("utf-8", "ignore")
        content.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("it is no text in UTF-8") from None
    found = _FRONTMATTER.match(text)
    if found is None or len(found[1] or "") > _LONGEST_FRONTMATTER:
        raise ValueError("it does not begin with a frontmatter: a line ---, YAML, and a line ---")
    try:
        value = load_yaml(found[1] or "", unique=True)
    except ImportError:
        raise ImportError(
            "skills have YAML in them, which needs a library: pip install 'pyyaml>=6.0.2'"
        ) from None
    check_frontmatter(value)
    frontmatter: dict[str, Any] = value
    return frontmatter


def check_frontmatter(value: Any) -> None:
    """Raises `ValueError` for JSON values that are not the frontmatter of a skill."""
    if not isinstance(value, dict) or not is_within(value, _MOST_VALUES, _MOST_LEVELS):
        raise ValueError("its frontmatter is no mapping of a few names")
    name, description = value.get("name"), value.get("description")
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise ValueError(
            f"its name {name!r:.80} is not one of a skill: a to z, 0 to 9 and single hyphens, 64 of them"
        )
    if not isinstance(description, str) or not 0 < len(description.strip()) <= _LONGEST_DESCRIPTION:
        raise ValueError(f"its description is no text of 1 to {_LONGEST_DESCRIPTION:,} characters")


def check_published(frontmatter: dict[str, Any]) -> None:
    """Raises `ValueError` for frontmatter that a server must not publish, because there are clients that refuse it.

    The names are those that Agent Skills gives a meaning to; whatever else there is may have any value.
    """
    compatibility = frontmatter.get("compatibility", "none")
    if not isinstance(compatibility, str) or not 0 < len(compatibility) <= _LONGEST_COMPATIBILITY:
        raise ValueError(f"its compatibility is no text of 1 to {_LONGEST_COMPATIBILITY} characters")
    metadata = frontmatter.get("metadata", {})
    if not isinstance(metadata, dict):
        raise ValueError("its metadata is no mapping")
    for name, value in metadata.items():
        if not isinstance(value, str):
            raise ValueError(
                f"its metadata has {name!r:.80}, which is no text: write {json.dumps(str(value))[:80]}"
            )


def is_same(one: Any, other: Any) -> bool:
    """Whether two JSON values are the same: 1 is 1.0, and no truth value is a number."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(one[each], other[each]) for each in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def check_entry(entry: Any) -> str:
    """Checks an entry of ``skills/list`` or ``skills/get`` and returns the root of the skill (SEP-2640, Skill Entries).

    Raises:
        ValueError: It is not an entry that may be used; the text says why.
    """
    if not isinstance(entry, dict) or not isinstance(entry.get("uri"), str):
        raise ValueError("it has no uri")
    uri: str = entry["uri"]
    root = root_of(uri)
    check_frontmatter(entry.get("frontmatter"))
    if root.rpartition("/")[2] != entry["frontmatter"]["name"]:
        raise ValueError(f"its folder is not called {entry['frontmatter']['name']!r}")
    files = entry.get("resources")
    if files == "dynamic":
        return root
    if not isinstance(files, list):
        raise ValueError('its resources are neither a list nor "dynamic"')
    paths = [_checked_file(root, each) for each in files]
    if len({*paths}) < len(paths):
        raise ValueError("it has a file twice")
    if MANIFEST not in paths:
        raise ValueError(f"its resources lack its {MANIFEST}")
    return root


def _checked_file(root: str, file: Any) -> str:
    if not isinstance(file, dict) or not isinstance(file.get("uri"), str):
        raise ValueError("one of its resources has no uri")
    path = path_of(root, file["uri"])
    size, digest = file.get("size"), file.get("digest")
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise ValueError(f"{path!r:.200} has no size")
    if not isinstance(digest, str) or _DIGEST.fullmatch(digest) is None:
        raise ValueError(f"{path!r:.200} has no digest of SHA-256")
    return path
