"""Skills as a server lists them (SEP-2640, Skill Entries)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs

from mcp_actors.types.records import ValueRecord, frozen_record

__all__ = ["Skill", "SkillResource"]


@frozen_record(eq=False, repr=False)
class SkillResource(ValueRecord):
    """A file of a skill, as its server has described it: what is read later has to be the same."""

    uri: str
    digest: str
    """``sha256:`` and 64 lowercase hexadecimal digits, of the bytes of the file."""
    size: int
    """Bytes."""


@frozen_record(eq=False, repr=False)
class Skill(ValueRecord):
    """The entry of one skill: a folder with instructions for a model in its ``SKILL.md``, and other files.

    It is known by its ``uri`` together with the server that it came from: names are not unique, and two servers may
    have the same URI. Approval of a person belongs to ``resources`` as they are: another entry with other ones is
    another skill.
    """

    uri: str
    """The URI of the ``SKILL.md``."""
    frontmatter: Mapping[str, Any]
    """What the ``SKILL.md`` says of itself, as JSON values. ``allowed-tools`` in it grants nothing: it is a wish of the
    server."""
    resources: Sequence[SkillResource] | Literal["dynamic"]
    """All files, or ``"dynamic"`` if their contents are made when they are read, and cannot be compared."""
    meta: Mapping[str, Any] | None = attrs.field(default=None, kw_only=True)

    @property
    def name(self) -> str:
        """A label, not an identifier."""
        return str(self.frontmatter["name"])

    @property
    def description(self) -> str:
        """Says what the skill does and when it is of use."""
        return str(self.frontmatter["description"])

    @property
    def root(self) -> str:
        """The URI of the folder, without a slash at its end."""
        return self.uri.rpartition("/")[0]

    @property
    def size(self) -> int:
        """Bytes of all files; 0 if they are dynamic."""
        return 0 if isinstance(self.resources, str) else sum(each.size for each in self.resources)
