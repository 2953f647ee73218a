"""The settings of one upstream, and what `Server.tree` shows of it while the gateway serves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Literal

import attrs
from attrs.validators import ge as _at_least
from attrs.validators import in_ as _in

from mcp_actors._client.options import Access
from mcp_actors.abc import ClientTransport
from mcp_actors.client import ServerLock, Target
from mcp_actors.server import Reshape

__all__ = ["SessionPolicy", "Upstream", "UpstreamTarget"]


SessionPolicy = Literal["auto", "shared", "own"]
"""Who shares a connection to an upstream."""
UpstreamTarget = Target | Callable[[], str | ClientTransport]
"""What a `Client` connects to, or a function that returns a URL or makes a transport, called for each connection."""


DESTRUCTIVE = "destructive"
"""Means, among the patterns of `Upstream.confirm`, tools that may destroy something."""


@attrs.frozen(kw_only=True)
class Upstream:
    """One server behind a `Gateway`: which it is, how its things are named, and who shares its connections."""

    name: str
    """Its name in the gateway: in prefixes, in the log, in errors and in `Server.tree`."""
    target: UpstreamTarget = attrs.field(repr=False)
    """The server. A transport object can be connected to once at a time, so a function makes them."""
    prefix: str | None = None
    """What the names of its tools and prompts begin with; by default its name and ``_``, and with ``""`` nothing."""
    rename: Mapping[str, str] = attrs.field(factory=dict)
    """Names of tools and prompts that are shown under another name, without the prefix."""
    include: Collection[str] = ("*",)
    """Patterns of the names (its own) and URIs that are offered, as of `fnmatch`."""
    exclude: Collection[str] = ()
    """Patterns of the names and URIs that are not offered, although they are included."""
    tools: Mapping[str, Reshape] = attrs.field(factory=dict)
    """Other shapes of tools, by the names that the server has for them. One that cannot have its shape, or that the
    server lists in a way that does not fit, is not offered, which is logged."""
    methods: Collection[str] = ()
    """Methods beyond the protocol that are passed on to it, such as those of an extension: their names."""
    sessions: SessionPolicy = "auto"
    """``"auto"`` shares a connection to a server that keeps no sessions, and makes one for each session of a client
    otherwise; ``"shared"`` and ``"own"`` overrule that."""
    lazy: bool = False
    """Whether it is connected to when it is first needed, and not when the gateway begins to serve."""
    era: str = "auto"
    """As in `Client`."""
    timeout: float = 300.0
    """Seconds a call may take without an answer or a progress report. Clients have clocks of their own, and not every
    server reports progress: so this is longer than any client waits that hears nothing."""
    cap: float = 3600.0
    """Seconds a call may take in all."""
    wait: float | None = None
    """Seconds for which it may delay a list of the gateway, once, when it is slow to start or to answer; ``None`` for
    the gateway's own setting. Its entries are left out then, and clients are notified when they are there."""
    arguments: Literal["as-is", "repair"] = attrs.field(default="as-is", validator=_in(("as-is", "repair")))
    """``"repair"`` makes of the arguments of a call what its tool takes, as ``Server(arguments="repair")`` does, by the
    schema that the server has listed. What does not fit and cannot be repaired goes as it is, as all arguments do by
    default: what a server does with them is its own matter."""
    inline_refs: bool = False
    """Whether the schemas of its tools are listed without ``$ref``, which many hosts cannot read. Those of recursive
    definitions stay, and those in schemas that would be more than four times as long."""
    scopes: Collection[str] = ()
    """The scopes that a caller needs to see and use it."""
    idempotent: Mapping[str, timedelta] = attrs.field(factory=dict)
    """For how long the gateway keeps the answers to calls with keys, by patterns of the names (its own) of tools: see
    `mcp_actors.extensions.Idempotency`. Keys of tools whose server keeps answers itself are passed on."""

    confirm: Collection[str] = ()
    """Which calls of tools a person has to approve, who is asked by the gateway's client: patterns of the names (its
    own), and ``"destructive"`` for those of which the server does not say that they destroy nothing."""
    confirm_by: Literal["form", "page"] = attrs.field(default="form", validator=_in(("form", "page")))
    """Whether the client asks its person, or a page of the gateway does: `mcp_actors.extensions.ApprovalPages`."""

    lock: ServerLock | None = None
    """What was approved of it: ``LockFile.read("mcp.lock").of(name)``. Tools, prompts, templates, skills and
    instructions that are different now, or were not approved, are not offered, calls of them are refused with
    `DefinitionChanged`, and the log has the difference. The list is compared before each call, and read again when it
    may be another one."""
    auth: Access | None = attrs.field(default=None, repr=False)
    """Access to it, as in `Client`. It is the gateway's own: what a caller presents is never passed on."""
    max_in_flight: int = attrs.field(default=256, validator=_at_least(1))
    """How many calls may be in flight at once; one caller may have half of them. More are refused at once."""
    max_connections: int = attrs.field(default=100, validator=_at_least(1))
    """How many connections there may be, to a server that needs one for each session: each may be a process. One
    caller, which is a principal or an address, may have half of them."""
    max_notifications: int = attrs.field(default=1000, validator=_at_least(1))
    """How many notifications a second are read of it, over all its connections: log messages, progress, changes. Each
    costs as much as a call, so one that sends more is not read for a while, and waits; its answers come later too."""

    def answers_kept(self, tool: str) -> float:
        """Seconds for which the gateway keeps the answers of a tool; 0 without any rule for it."""
        kept = (each for pattern, each in self.idempotent.items() if fnmatchcase(tool, pattern))
        return next(kept, timedelta(0)).total_seconds()

    def is_confirmed(self, tool: str, *, is_destructive: bool) -> bool:
        """Whether a person has to approve each call of a tool."""
        return any(
            is_destructive if pattern == DESTRUCTIVE else fnmatchcase(tool, pattern)
            for pattern in self.confirm
        )

    @property
    def name_prefix(self) -> str:
        """The prefix that is in use."""
        return f"{self.name}_" if self.prefix is None else self.prefix
