"""Apps: pages that a host shows beside the results of tools (SEP-1865): their objects and their format.

What a peer says of a page decides what a browser lets it do. So nothing of it is passed on that is not of the form
that the extension has for it: an origin with a semicolon in it would be a directive of its own in a policy.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import attrs

from mcp_actors.types.records import ValueRecord, frozen_record

__all__ = [
    "APPS",
    "APP_MIME",
    "APP_SCHEME",
    "FLAT_URI",
    "MOST_HTML",
    "PERMISSIONS",
    "UI",
    "AppCsp",
    "AppPage",
    "AppPermission",
    "app_uri_of",
    "check_origin",
    "page_meta",
    "page_of",
    "tool_meta",
    "visibility_of",
    "with_app_uri",
]

APPS = "io.modelcontextprotocol/ui"
"""The id of the extension."""
APP_MIME = "text/html;profile=mcp-app"
"""The type of a page, the only one that the extension has."""
APP_SCHEME = "ui://"
"""What the URI of a page begins with."""
MOST_HTML = 4 * 1024 * 1024
"""Bytes of one page, with all scripts that are written into it."""

UI = "ui"
"""The member of ``_meta`` that the extension has."""
FLAT_URI = "ui/resourceUri"
"""Where hosts before the extension was final look for the page of a tool."""

_MOST_ORIGINS = 64
_ALL = frozenset(("model", "app"))
# RFC 3986 section 3.2, without a user: an origin as a source of Content Security Policy Level 3 has it, section 2.3.1.
_ORIGIN = r"(?:https?|wss?)://(?:\*\.)?[A-Za-z0-9.-]{1,253}(?::[0-9]{1,5}|:\*)?|data:|blob:"
# The members of ``csp``, and what they are called here.
_CSP = {
    "connectDomains": "connect",
    "resourceDomains": "resources",
    "frameDomains": "frames",
    "baseUriDomains": "base_uris",
}

AppPermission = Literal["camera", "microphone", "geolocation", "clipboardWrite"]
"""What a page may ask of the browser of its host, as the extension calls it."""

PERMISSIONS: tuple[AppPermission, ...] = get_args(AppPermission)
# The names of these features in the ``allow`` attribute of a frame (Permissions Policy).
_FEATURES = {
    "camera": "camera",
    "microphone": "microphone",
    "geolocation": "geolocation",
    "clipboardWrite": "clipboard-write",
}


@frozen_record(eq=False, repr=False)
class AppCsp(ValueRecord):
    """The origins that a page needs beside its own text, such as ``"https://api.example.com"``; by default none.

    A name may begin with ``*.``, for all names below it. Hosts make a Content Security Policy of them, which lets the
    page reach nothing else.
    """

    connect: Sequence[str] = ()
    """Where it sends requests to, and opens WebSockets."""
    resources: Sequence[str] = ()
    """Where it loads scripts, styles, images, fonts and media from."""
    frames: Sequence[str] = ()
    """What it shows in frames of its own."""
    base_uris: Sequence[str] = ()
    """What its relative URLs may be relative to."""


@frozen_record(eq=False, repr=False)
class AppPage(ValueRecord):
    """The page of a tool, as its server has it, checked: what a host shows in a sandbox.

    It is as much to be trusted as its server. A host shows it in a frame of another origin, sends the frame
    `content_security_policy` as a header, and lets the page call tools of the same server alone.
    """

    uri: str
    """The ``ui://`` URI. Two servers may have the same one."""
    html: str
    csp: AppCsp = attrs.field(factory=AppCsp, kw_only=True)
    permissions: frozenset[AppPermission] = attrs.field(default=frozenset(), kw_only=True)
    """What it asks of the browser. The host decides."""
    domain: str | None = attrs.field(default=None, kw_only=True)
    """The origin that it wants to have, in the form that the host has for that."""
    prefers_border: bool | None = attrs.field(default=None, kw_only=True)
    """Whether it wants a border and a background from the host; ``None`` if the host decides."""

    @property
    def content_security_policy(self) -> str:
        """The value of the header ``Content-Security-Policy`` that lets the page reach what `csp` names, and no more.

        SEP-1865, Content Security Policy Enforcement.
        """
        csp = self.csp
        loaded = csp.resources
        directives: list[tuple[str, Sequence[str]]] = [
            ("default-src", ["'none'"]),
            ("script-src", ["'self'", "'unsafe-inline'", *loaded]),
            ("style-src", ["'self'", "'unsafe-inline'", *loaded]),
            ("img-src", ["'self'", "data:", *loaded]),
            ("font-src", ["'self'", *loaded]),
            ("media-src", ["'self'", "data:", *loaded]),
            ("connect-src", csp.connect or ["'none'"]),
            ("frame-src", csp.frames or ["'none'"]),
            ("object-src", ["'none'"]),
            ("base-uri", csp.base_uris or ["'self'"]),
        ]
        return "; ".join(f"{name} {' '.join(values)}" for name, values in directives)

    @property
    def allow(self) -> str:
        """The ``allow`` attribute of a frame that grants all `permissions`."""
        return "; ".join(_FEATURES[each] for each in sorted(self.permissions))


def check_origin(origin: object) -> None:
    """Raises `ValueError` for anything but an origin that a policy can name."""
    if not isinstance(origin, str) or not re.fullmatch(_ORIGIN, origin):
        raise ValueError(
            f"{origin!r:.200} is no origin: write for example 'https://api.example.com', without a path"
        )


# -- what a server says ----------------------------------------------------------------------------------------------


def tool_meta(uri: str | None, visibility: Iterable[str] | None) -> dict[str, Any]:
    """Returns the members of a tool's ``_meta`` that name its page, and who is offered it."""
    ui: dict[str, Any] = {}
    if uri is not None:
        ui["resourceUri"] = uri
    if visibility is not None:
        ui["visibility"] = list(visibility)
    return {UI: ui, FLAT_URI: uri} if uri is not None else {UI: ui}


def page_meta(
    csp: AppCsp, permissions: Collection[str], domain: str | None, prefers_border: bool | None
) -> dict[str, Any]:
    """Returns the ``_meta`` of a page and of its resource."""
    ui: dict[str, Any] = {}
    if origins := {name: list(getattr(csp, ours)) for name, ours in _CSP.items() if getattr(csp, ours)}:
        ui["csp"] = origins
    if permissions:
        ui["permissions"] = {each: {} for each in sorted(permissions)}
    if domain is not None:
        ui["domain"] = domain
    if prefers_border is not None:
        ui["prefersBorder"] = prefers_border
    return {UI: ui}


# -- what a peer has said --------------------------------------------------------------------------------------------


def app_uri_of(meta: Mapping[str, Any] | None) -> str | None:
    """Returns the URI of the page that a tool names in its ``_meta``, ``None`` without one.

    It may be of any form: whoever reads the page checks it.
    """
    if not meta:
        return None
    ui = meta.get(UI)
    uri = ui.get("resourceUri") if isinstance(ui, Mapping) else None
    uri = meta.get(FLAT_URI) if uri is None else uri
    return uri if isinstance(uri, str) else None


def visibility_of(meta: Mapping[str, Any] | None) -> frozenset[str]:
    """Returns who may call a tool, out of ``"model"`` and ``"app"`` (SEP-1865, Visibility)."""
    ui = meta.get(UI) if meta else None
    visibility = ui.get("visibility") if isinstance(ui, Mapping) else None
    if not isinstance(visibility, list):
        return _ALL
    return _ALL.intersection(each for each in visibility if isinstance(each, str))


def with_app_uri(meta: dict[str, Any], uri: str | None) -> dict[str, Any]:
    """Returns the ``_meta`` of a tool or a result with another URI of its page, without one if it has none."""
    changed = {name: value for name, value in meta.items() if name not in (UI, FLAT_URI)}
    found = meta.get(UI)
    ui = dict(found) if isinstance(found, Mapping) else {}
    ui.pop("resourceUri", None)
    if uri is not None:
        ui["resourceUri"] = uri
        if FLAT_URI in meta:
            changed[FLAT_URI] = uri
    return {**changed, UI: ui} if ui else changed


def page_of(uri: str, html: str, meta: Mapping[str, Any]) -> tuple[AppPage, list[str]]:
    """Returns a page with what its ``_meta`` says, and which parts of that are left out, because they are malformed.

    Without them the page can do less and never more.
    """
    found = meta.get(UI)
    ui: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    dropped: list[str] = []
    csp = _csp_of(ui.get("csp"), dropped)
    asked, domain, border = ui.get("permissions"), ui.get("domain"), ui.get("prefersBorder")
    granted = asked if isinstance(asked, Mapping) else {}
    page = AppPage(
        uri,
        html,
        csp=csp,
        permissions=frozenset(each for each in PERMISSIONS if granted.get(each) not in (None, False)),
        domain=domain if isinstance(domain, str) else None,
        prefers_border=border if isinstance(border, bool) else None,
    )
    return page, dropped


def _csp_of(declared: Any, dropped: list[str]) -> AppCsp:
    origins: dict[str, tuple[str, ...]] = {}
    for name, ours in _CSP.items():
        listed = declared.get(name) if isinstance(declared, Mapping) else None
        found: list[str] = []
        for each in listed[: _MOST_ORIGINS + 1] if isinstance(listed, list) else ():
            try:
                check_origin(each)
            except ValueError as error:
                dropped.append(f"{name}: {error}")
            else:
                found.append(each)
        if len(found) > _MOST_ORIGINS:
            dropped.append(f"{name} has more than {_MOST_ORIGINS} origins")
            found.clear()
        origins[ours] = tuple(found)
    return AppCsp(**origins)
