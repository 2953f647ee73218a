"""Apps of a server: the pages on which hosts show the results of tools, as resources with ``ui://`` URIs (SEP-1865).

The page of a tool is a resource like any other: it is listed, read, hidden, counted and mounted like them. What the
extension adds is said in ``_meta``: a tool names its page, and a page says what it needs of a browser.

A file is read once, when its tool is added, and kept: no path of a client ever reaches the file system.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import attrs

from mcp_actors._server.invoke import name_of
from mcp_actors.types.apps import (
    APP_MIME,
    APP_SCHEME,
    MOST_HTML,
    PERMISSIONS,
    AppCsp,
    AppPermission,
    check_origin,
    page_meta,
    tool_meta,
)

__all__ = ["App", "PageResource", "as_app", "linked_meta", "page_for"]

_VISIBLE_TO = ("model", "app")
_LONGEST_URI = 1_024
# What a document of HTML begins with, behind comments and what an XML declaration or a byte order mark would be.
_DOCUMENT = re.compile(r"<(?:!doctype\s+html|html)\b", re.IGNORECASE)


@attrs.frozen
class App:
    """The page of a tool, and who may call the tool: ``@server.tool(app=App("board.html", visibility=["app"]))``.

    Hosts that have the extension show the results of the tool on the page, in a sandbox. All others ignore it, and show
    what the tool returns.

    Raises:
        TypeError: A value is of another kind; the message says what to write.
        ValueError: An origin, a permission or a URI is malformed, or something is said of a page that is not there.
    """

    page: str | os.PathLike[str] | Callable[..., Any] | None = None
    """A file of HTML, relative to that of the tool's function; a function that returns HTML, which is called for each
    read as that of `Server.add_resource`; or the ``ui://`` URI of a resource of the server. Without any the tool has no
    page, and only ``visibility`` is said of it."""
    uri: str | None = attrs.field(default=None, kw_only=True)
    """The URI of the page, by default ``ui://`` and the path of the file or the name of the function."""
    csp: AppCsp = attrs.field(factory=AppCsp, kw_only=True)
    """The origins that the page needs. By default it reaches nothing: scripts and styles are in the page itself."""
    permissions: Collection[AppPermission] = attrs.field(default=(), kw_only=True)
    """What the page asks of the browser: ``"camera"``, ``"microphone"``, ``"geolocation"``, ``"clipboardWrite"``.
    A host need not grant it."""
    visibility: Collection[str] | None = attrs.field(default=None, kw_only=True)
    """Who may call the tool: ``"model"``, ``"app"`` or both, which is the default. Hosts offer a tool for ``["app"]``
    to no model, and let pages of this server call it."""
    domain: str | None = attrs.field(default=None, kw_only=True)
    """The origin that the page wants to have, in the form that a host has for that. By default the host decides."""
    prefers_border: bool | None = attrs.field(default=None, kw_only=True)
    """Whether the page wants a border and a background from its host. By default the host decides."""

    def __attrs_post_init__(self) -> None:
        page = self.page
        if page is not None and not isinstance(page, str | os.PathLike) and not callable(page):
            raise TypeError(f"{page!r:.80}: a page is a file, a function that returns HTML, or a ui:// URI")
        if not isinstance(self.csp, AppCsp):
            raise TypeError(f"csp={self.csp!r:.80}: write AppCsp(connect=['https://api.example.com'])")
        for name in ("connect", "resources", "frames", "base_uris"):
            listed = getattr(self.csp, name)
            if isinstance(listed, str):
                raise TypeError(f"AppCsp({name}={listed!r}): write a list of origins")
            for each in listed:
                check_origin(each)
        _check_words("permissions", self.permissions, PERMISSIONS)
        if self.visibility is not None:
            _check_words("visibility", self.visibility, _VISIBLE_TO)
            if not self.visibility:
                raise ValueError("visibility=[]: a tool that nobody may call is left out")
        if self.uri is not None:
            check_app_uri(self.uri)
        if isinstance(page, str) and page.startswith(APP_SCHEME):
            check_app_uri(page)
        said = self.uri, self.permissions or None, self.domain, self.prefers_border
        if self.link == page and (self.csp != AppCsp() or any(each is not None for each in said)):
            where = "a page that is a resource says itself what it needs" if page else "there is no page"
            raise ValueError(f"{where}: leave out everything but visibility=")

    @property
    def link(self) -> str | None:
        """The page, if it is a resource that is there already; ``None`` without a page, too."""
        return self.page if isinstance(self.page, str) and self.page.startswith(APP_SCHEME) else None


def _check_words(name: str, given: Any, known: Collection[str]) -> None:
    if isinstance(given, str) or not isinstance(given, Collection):
        raise TypeError(f"{name}={given!r:.80}: write a list, such as [{next(iter(known))!r}]")
    for each in given:
        if each not in known:
            raise ValueError(f"{name}: there is no {each!r:.80}, only {', '.join(map(repr, known))}")


def check_app_uri(uri: Any) -> None:
    """Raises `ValueError` for anything but the URI of one page."""
    if (
        not isinstance(uri, str)
        or not re.fullmatch(r"ui://[^\s{}<>\"\\^`|]+", uri)
        or len(uri) > _LONGEST_URI
    ):
        raise ValueError(f"{uri!r:.200} is no URI of a page: write for example 'ui://shop/board'")


# -- the page of one tool --------------------------------------------------------------------------------------------


@attrs.frozen
class PageResource:
    """A page that is to be a resource. Two tools may have an equal one."""

    uri: str
    source: str | Callable[..., Any]
    """Its text, or what makes it."""
    options: Mapping[str, Any]
    """Those of the resource."""

    @property
    def read(self) -> Callable[..., Any]:
        """The function of the resource."""
        return partial(_kept, self.source) if isinstance(self.source, str) else self.source


def as_app(given: Any) -> App:
    """Returns what ``app=`` was given as an `App`; raises as that does."""
    return given if isinstance(given, App) else App(given)


def page_for(app: App, call: Callable[..., Any]) -> PageResource | None:
    """Returns the page of a tool as a resource that is to be added, ``None`` if there is none to add.

    Args:
        app: What the tool has.
        call: The function of the tool; a file is looked for beside the one that it is written in.

    Raises:
        ValueError: The file is not there, lies elsewhere, is too long, or is not a document of HTML.
        TypeError: The function that makes the page has no name, and the page no URI.
    """
    if app.page is None or app.link is not None:
        return None
    shown: dict[str, Any] = {
        "mime_type": APP_MIME,
        "meta": page_meta(app.csp, app.permissions, app.domain, app.prefers_border),
    }
    if not isinstance(app.page, str | os.PathLike):
        name = _name_of_made(app.page, app.uri)
        return PageResource(app.uri or f"{APP_SCHEME}{quote(name)}", app.page, {**shown, "name": name})
    given, folder = Path(app.page), _folder_of(call)
    path = (folder / given).resolve()
    inside = path.relative_to(folder) if path.is_relative_to(folder) else None
    if inside is None and not given.is_absolute():
        raise ValueError(f"app={str(given)!r} leads out of {str(folder)!r}, in which the tool is written")
    html = _read_html(path)
    uri = app.uri or APP_SCHEME + quote((inside or Path(path.name)).as_posix())
    return PageResource(uri, html, {**shown, "name": path.stem, "size": len(html.encode()), "inline": True})


def _name_of_made(page: Any, uri: str | None) -> str:
    """The name of a page that a function makes: that of the function, else the end of the URI."""
    try:
        return name_of(page)
    except TypeError:
        if uri is None:
            problem = (
                f"{page!r:.80} has no name, which the page would have: write App(page, uri='ui://shop/board')"
            )
            raise TypeError(problem) from None
        return uri.rstrip("/").rpartition("/")[2]


def _kept(html: str) -> str:
    return html


def _folder_of(call: Any) -> Path:
    """The folder in which a function is written; that of the process for one that was typed in."""
    while isinstance(call, partial):
        call = call.func
    call = inspect.unwrap(call)
    code = getattr(call if hasattr(call, "__code__") else type(call).__call__, "__code__", None)
    file = None if code is None else Path(code.co_filename)
    return (file.parent if file is not None and file.is_file() else Path()).resolve()


def _read_html(path: Path) -> str:
    if not path.is_file():
        raise ValueError(f"app={str(path)!r}: there is no such file")
    with path.open("rb") as file:
        content = file.read(MOST_HTML + 1)
    if len(content) > MOST_HTML:
        raise ValueError(f"app={str(path)!r} has more than {MOST_HTML:,} bytes, which hosts refuse")
    try:
        html = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"app={str(path)!r} is not UTF-8: {error}") from None
    if not _DOCUMENT.search(html):
        raise ValueError(f"app={str(path)!r} is no document of HTML: write <!doctype html> at its beginning")
    return html


def linked_meta(given: Any, meta: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Returns the ``_meta`` of a tool with what ``app=`` was given, of which the page is a resource.

    Raises:
        ValueError: It has both already, or the page is not a resource.
    """
    if given is None:
        return meta
    app = as_app(given)
    if app.page is not None and app.link is None:
        raise ValueError(
            f"app={app.page!r:.80}: the tool of a provider has the ui:// URI of a resource, which is provided as well"
        )
    linked = tool_meta(app.link, app.visibility)
    if meta is not None and (twice := sorted(linked.keys() & meta.keys())):
        raise ValueError(f"meta= has {twice[0]!r} already: leave that to app=")
    return {**(meta or {}), **linked}
