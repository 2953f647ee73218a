"""Resources: data that a client may read by its URI (MCP, Server Features, Resources)."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Unpack

import msgspec

from mcp_actors import types as t
from mcp_actors._actors.inbound_call import Continuation, finished
from mcp_actors._actors.responses import InvalidResult
from mcp_actors._schema.fields import strip
from mcp_actors._schema.signature import InvalidArguments, function_hints, read_signature
from mcp_actors._server.context import Context
from mcp_actors._server.dependencies import function
from mcp_actors._server.invoke import Function, Handler, Loop, is_async, name_of, uri_param
from mcp_actors._server.registry import NO_SCOPES, Registry, RegistryOptions
from mcp_actors._server.sources import found_in_sources, list_result
from mcp_actors._server.text_arguments import TextArgument, TextArguments
from mcp_actors._server.visibility import Caller, Exposure, caller_of, make_exposure
from mcp_actors._wire.codec import encode_value
from mcp_actors._wire.uri_template import UriTemplate, leads_away
from mcp_actors.errors import ResourceNotFound
from mcp_actors.types import Annotations, BlobResourceContents, Icon, Resource, TextResourceContents
from mcp_actors.types.apps import APP_MIME, APP_SCHEME, UI

__all__ = ["Resources", "Unscreened", "check_uri"]

# RFC 3986 section 3.1; the variables of a template may produce it.
_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]*:|[A-Za-z0-9+.-]*\{"
_CONTENTS = (TextResourceContents, BlobResourceContents)
_BYTES = (bytes, bytearray, memoryview)

# Subscriptions of one request whose scopes are looked up one by one: more than a person can follow.
_MOST_SEARCHED = 256
# Resources that are listed at run time come behind all that were registered, whose serials count from 1.
_FIRST_DYNAMIC_SERIAL = 1 << 40


class _ResourceEntry(msgspec.Struct, frozen=True, eq=False):
    """A resource, or (then ``template`` is set) a family of them."""

    key: str
    serial: int
    listed: Resource | t.ResourceTemplate
    template: UriTemplate | None
    arguments: TextArguments
    function: Function
    encode: Callable[[Any], Any]
    lister: Function | None
    scopes: frozenset[str]
    unscreened: frozenset[str]
    """The variables that may have any value."""
    exposure: Exposure


class _ListedResource(msgspec.Struct, frozen=True):
    """A resource that was listed at run time."""

    key: str
    serial: int
    listed: Resource
    scopes: frozenset[str]
    exposure: Exposure


_Row = _ResourceEntry | _ListedResource
"""One line of ``resources/list``."""


class Resources(Registry[_ResourceEntry]):
    """The resources of one server and the handlers of ``resources/list``, ``…/templates/list`` and ``…/read``.

    A uri is looked up among the resources first, then in the templates in the order in which they were added.
    """

    what = "resource"
    shown_as = "listed"

    def __init__(self, **options: Unpack[RegistryOptions]) -> None:
        super().__init__(**options)
        # The listing that was split, and its parts.
        self._parts: tuple[tuple[_ResourceEntry, ...], ...] = ((), (), ())

    def add(self, uri: str, call: Callable[..., Any], **options: Any) -> Resource | t.ResourceTemplate:
        """Adds what ``call`` reads under ``uri`` and returns how clients see it; see `entry` for the options.

        Raises what `entry` does, and `LocalProtocolError` for a uri that is taken.
        """
        entry = self.entry(uri, call, serial=self.next_serial(), **options)
        self.insert(entry)
        return entry.listed

    def entry(
        self,
        uri: str,
        call: Callable[..., Any],
        *,
        serial: int = 0,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        mime_type: str | None = None,
        size: int | None = None,
        annotations: Annotations | None = None,
        icons: Sequence[Icon] = (),
        meta: Mapping[str, Any] | None = None,
        inline: bool = False,
        loop: Loop = None,
        scopes: Iterable[str] = (),
        list: Callable[..., Any] | None = None,
        **exposed: Any,
    ) -> _ResourceEntry:
        """Makes the entry of what ``call`` reads under ``uri``.

        A ``uri`` with ``{`` in it is a template: ``call`` takes its variables by name; what is not text is read from
        it. What it returns is text, bytes, contents, a list of contents, or any typed value, which is sent as JSON. It
        raises `ResourceNotFound` when there is nothing. A value that `leads_away` names nothing: see `Unscreened`.

        ``list``, for templates only, is a function without arguments (or with the context) that returns the
        resources of the family that exist now, as `Resource` objects: ``resources/list`` shows them too. It is called
        for every page. ``size`` (bytes) is for resources only, as the protocol has none for templates. A caller
        needs all ``scopes``. What is ``exposed`` says who sees it: see `make_exposure`.

        Raises `TypeError` when the parameters of ``call`` are not the variables of ``uri``, `ValueError` for a bad
        template.
        """
        check_uri(uri)
        template = UriTemplate(uri) if "{" in uri else None
        name = name_of(call) if name is None else name
        signature = read_signature(call, injected=self._injected)
        arguments = TextArguments(signature, of=f"resource {uri!r}")
        _check_parameters(uri, arguments.by_name, () if template is None else template.variables)
        if template is None and list is not None:
            raise TypeError(f"resource {uri!r}: list= is for templates")
        if template is not None and size is not None:
            raise TypeError(f"resource template {uri!r}: a template has no size")
        exposure, meta = make_exposure("resource" if template is None else "template", uri, meta, **exposed)
        if mime_type is None and uri.startswith(APP_SCHEME):
            mime_type = APP_MIME
        listed = (Resource if template is None else t.ResourceTemplate)(
            uri,
            name,
            title=title,
            description=description or signature.description or title or name,
            mime_type=mime_type,
            annotations=annotations,
            icons=[*icons] or None,
            meta=meta,
        )
        if isinstance(listed, Resource):
            listed.size = size
        ready = function(
            call,
            injected_name=signature.injected_name,
            for_sync=self._for_sync,
            inline=inline,
            threads=self._threads,
            loop=loop,
        )
        return _ResourceEntry(
            key=uri,
            serial=serial,
            listed=listed,
            template=template,
            arguments=arguments,
            function=ready,
            encode=signature.encode_output,
            lister=None if list is None else self._lister(list, uri, loop),
            scopes=frozenset(scopes),
            unscreened=unscreened_parameters(call),
            exposure=exposure,
        )

    def covers(self, uri: str) -> bool:
        """Whether a resource or a template serves ``uri``. A template's function may still find nothing there."""
        return self._find(uri) is not None

    def key_of(self, uri: str) -> str | None:
        """The resource or the template that serves ``uri``, ``None`` without one."""
        found = self._find(uri)
        return None if found is None else found[0].key

    def scopes_to_read(self, uri: object) -> frozenset[str]:
        """The scopes that a caller needs to read ``uri``; none where nothing serves it."""
        found = self._find(uri) if isinstance(uri, str) else None
        return NO_SCOPES if found is None else self.scopes_of_any(found[0])

    def scopes_to_subscribe(self, uri: object) -> frozenset[str]:
        """The scopes that a caller needs for updates of ``uri`` and of all that lies below it."""
        if not self.scoped or not isinstance(uri, str):
            return NO_SCOPES
        served = self._find(uri)
        needed = set() if served is None else {*served[0].scopes}
        below = uri if uri.endswith("/") or served is None else f"{uri}/"
        for entry in self.listing():
            head = entry.key.partition("{")[0]
            # What a template serves is unknown. So it counts for a URI that is not a resource itself and may lie above.
            inside = served is None and entry.template is not None and uri.startswith(head)
            if entry.scopes and (inside or head.startswith(below)):
                needed |= entry.scopes
        return frozenset(needed)

    def scopes_to_subscribe_all(self, uris: Sequence[object]) -> frozenset[str]:
        """As `scopes_to_subscribe`, for several; for very many all scopes, so that the search stays short."""
        if len(uris) > _MOST_SEARCHED:
            return NO_SCOPES.union(*(entry.scopes for entry in self.listing()))
        return NO_SCOPES.union(*map(self.scopes_to_subscribe, uris))

    @property
    def has_templates(self) -> bool:
        return bool(self._split()[1])

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "resources/list": self._list,
            "resources/templates/list": self._list_templates,
            "resources/read": self._read,
        }

    def _lister(self, call: Callable[..., Any], uri: str, loop: Loop) -> Function:
        signature = read_signature(call, injected=self._injected)
        if signature.input_schema.get("required"):
            raise TypeError(
                f"resource template {uri!r}: the function given as list= takes no arguments but the context"
            )
        return function(
            call,
            injected_name=signature.injected_name,
            for_sync=self._for_sync,
            inline=False,
            threads=self._threads,
            draw=tuple,
            loop=loop if is_async(call) else None,
        )

    def _split(self) -> tuple[tuple[_ResourceEntry, ...], tuple[_ResourceEntry, ...]]:
        """Resources and templates apart, made once after each change."""
        entries = self.listing()
        split, rows, templates = self._parts
        if split is not entries:
            rows = tuple(entry for entry in entries if entry.template is None)
            templates = tuple(entry for entry in entries if entry.template is not None)
            self._parts = (entries, rows, templates)
        return rows, templates

    def _list(self, ctx: Context) -> t.ListResourcesResult | Continuation:
        rows, _ = self._split()
        if self.has_listers:
            return Continuation(self._list_dynamic, ctx)
        return self._page(ctx, self.seen_by(ctx, rows, "resources"))

    async def _list_dynamic(self, ctx: Context) -> t.ListResourcesResult:
        result: t.ListResourcesResult = await finished(self._page(ctx, await self.rows(ctx)))
        return result

    def _page(self, ctx: Context, rows: Sequence[_Row]) -> t.ListResourcesResult | Continuation:
        return list_result(self, ctx, "resources", rows, t.ListResourcesResult)

    async def rows(self, ctx: Context) -> Sequence[_Row]:
        """Returns the lines of ``resources/list`` that a caller sees, with those that functions list at run time."""
        rows, _ = self._split()
        known: dict[str, _Row] = {row.key: row for row in rows}
        for entry in self.seen_by(ctx, self._split()[1]):
            if entry.lister is None:
                continue
            found: Iterable[Resource] = await entry.lister.call(ctx, {})
            for resource in found:
                if resource.uri not in known:
                    serial = _FIRST_DYNAMIC_SERIAL + len(known)
                    exposure = entry.exposure.of_resource(resource.uri)
                    known[resource.uri] = _ListedResource(
                        resource.uri, serial, resource, entry.scopes, exposure
                    )
        return self.seen_by(ctx, tuple(known.values()))

    def templates_seen_by(self, ctx: Context) -> Sequence[_ResourceEntry]:
        """Returns the entries of ``resources/templates/list`` that a caller sees."""
        return self.seen_by(ctx, self._split()[1], "templates")

    @property
    def has_listers(self) -> bool:
        """Whether functions list resources at run time."""
        return any(entry.lister is not None for entry in self._split()[1])

    def digest_of(self, caller: Caller, which: str) -> int | None:
        """As `digest_for`, for the resources or the templates."""
        rows, templates = self._split()
        if which == "templates":
            return self.digest_for(caller, templates, which)
        return None if self.has_listers else self.digest_for(caller, rows, which)

    def _list_templates(self, ctx: Context) -> t.ListResourceTemplatesResult | Continuation:
        return list_result(self, ctx, "templates", self.templates_seen_by(ctx), t.ListResourceTemplatesResult)

    async def check_provided(self, ctx: Context, uri: str) -> tuple[_ResourceEntry, dict[str, Any]]:
        """Returns what a source has for ``uri``, with the values of its variables, as `check_seen`.

        Raises:
            ResourceNotFound, InsufficientScope, NotAllowed: As `check_seen` does.
            UpstreamUnavailable: A source cannot be asked.
        """
        entry = await found_in_sources(self, ctx, "resource", uri)
        variables = None if entry is None else _variables(entry, uri)
        if entry is None or variables is None:
            raise ResourceNotFound(uri)
        self._check_of_template(ctx, entry, uri)
        return entry, variables

    async def _read_provided(self, ctx: Context, uri: str) -> t.ReadResourceResult:
        entry, variables = await self.check_provided(ctx, uri)
        result: t.ReadResourceResult = await finished(_answer(entry, ctx, _bound(entry, variables, uri), uri))
        return result

    def _read(self, ctx: Context) -> t.ReadResourceResult | Continuation:
        uri = uri_param(ctx.params)
        if self.sources and self._find(uri) is None:
            return Continuation(self._read_provided, ctx, uri)
        entry, arguments = self._found(uri, ctx)
        return _answer(entry, ctx, arguments, uri)

    def _find(self, uri: str) -> tuple[_ResourceEntry, dict[str, Any]] | None:
        entry = self.by_key.get(uri)
        if entry is not None and entry.template is None:
            return entry, {}
        for entry in self._split()[1]:
            if entry.template is not None and (found := entry.template.match(uri)) is not None:
                # No template further down is asked either: its function would be handed the same.
                variables = _screened(entry, found)
                return None if variables is None else (entry, variables)
        return None

    def check_seen(self, ctx: Context, uri: str) -> None:
        """Checks that a caller may read ``uri``.

        Raises:
            ResourceNotFound: Nothing serves it, or nothing that the caller may know of.
            InsufficientScope, NotAllowed: The caller may not use it.
        """
        self._served(ctx, uri)

    def is_seen_by(self, caller: Caller, uri: str) -> bool:
        """Whether a caller may hear of ``uri``; anything that nothing serves is not hidden."""
        found = None if self.is_plain else self._find(uri)
        if found is None:
            return True
        versions = self.versions(found[0].key)
        return any(
            self.lists(caller, each)
            and (each.template is None or self.visibility.sees(caller, each.exposure.of_resource(uri)))
            for each in versions
        )

    def _served(self, ctx: Context, uri: str) -> tuple[_ResourceEntry, dict[str, Any]]:
        """The entry that serves ``uri`` to a caller, with the values of its variables. The first one decides."""
        found = self._find(uri)
        if found is None:
            raise ResourceNotFound(uri)
        if self.is_plain:
            return found
        entry = self.find(ctx, found[0].key)
        if entry is None:
            raise ResourceNotFound(uri)
        self._check_of_template(ctx, entry, uri)
        return entry, found[1]

    def _check_of_template(self, ctx: Context, entry: _ResourceEntry, uri: str) -> None:
        """Checks that a caller may use a resource, if a template serves it."""
        if entry.template is not None:
            caller, exposure = caller_of(ctx), entry.exposure.of_resource(uri)
            if not self.visibility.sees(caller, exposure):
                raise ResourceNotFound(uri)
            self.visibility.check(caller, exposure)

    def _found(self, uri: str, ctx: Context) -> tuple[_ResourceEntry, dict[str, Any]]:
        entry, variables = self._served(ctx, uri)
        return entry, _bound(entry, variables, uri)


def check_uri(uri: Any) -> None:
    """Raises `TypeError` for anything but a URI that clients can ask for."""
    if not isinstance(uri, str):
        raise TypeError('a resource has a URI, which comes first: write @server.resource("data://NAME")')
    if not re.match(_SCHEME, uri):
        raise TypeError(
            f'{uri!r} has no scheme, without which it is no URI: write for example "data://{uri}"'
        )


def _variables(entry: _ResourceEntry, uri: str) -> dict[str, Any] | None:
    """The variables of an entry in a URI that it serves, ``None`` if it does not serve that."""
    if entry.template is None:
        return {}
    found = entry.template.match(uri)
    return None if found is None else _screened(entry, found)


def _screened(entry: _ResourceEntry, variables: Mapping[str, Any]) -> dict[str, Any] | None:
    """The variables of a template, ``None`` if one of them leads away."""
    for name, each in variables.items():
        if leads_away(each) and name not in entry.unscreened:
            return None
    return dict(variables)


def _bound(entry: _ResourceEntry, variables: dict[str, Any], uri: str) -> dict[str, Any]:
    try:
        return entry.arguments.bind(variables)
    except InvalidArguments:
        # A variable that the function cannot take names nothing that exists.
        raise ResourceNotFound(uri) from None


def _answer(
    entry: _ResourceEntry, ctx: Context, arguments: dict[str, Any], uri: str
) -> t.ReadResourceResult | Continuation:
    if not entry.function.inline:
        return Continuation(_run, entry, ctx, arguments, uri)
    return _result(entry.function.call(ctx, arguments), uri, entry)


async def _run(
    entry: _ResourceEntry, ctx: Context, arguments: dict[str, Any], uri: str
) -> t.ReadResourceResult:
    return _result(await entry.function.call(ctx, arguments), uri, entry)


def _check_parameters(uri: str, arguments: Mapping[str, TextArgument], variables: Iterable[str]) -> None:
    names = set(variables)
    unknown = [each.name for each in arguments.values() if each.required and each.name not in names]
    if unknown:
        raise TypeError(f"resource {uri!r}: no variable for the parameter {', '.join(unknown)}")
    missing = sorted(names.difference(arguments))
    if missing:
        raise TypeError(f"resource {uri!r}: no parameter for the variable {', '.join(missing)}")


def _result(value: Any, uri: str, entry: _ResourceEntry) -> t.ReadResourceResult:
    if isinstance(value, t.ReadResourceResult):
        return value
    if isinstance(value, list | tuple) and any(isinstance(item, _CONTENTS) for item in value):
        return t.ReadResourceResult([_contents(item, uri, entry) for item in value])
    return t.ReadResourceResult([_contents(value, uri, entry)])


def _contents(value: Any, uri: str, entry: _ResourceEntry) -> TextResourceContents | BlobResourceContents:
    if isinstance(value, _CONTENTS):
        return value
    mime_type, meta = entry.listed.mime_type, entry.listed.meta
    # SEP-1865, Metadata Location: what the list says of a page is said with the page as well, where all hosts look.
    said = {UI: meta[UI]} if meta and UI in meta and uri.startswith(APP_SCHEME) else None
    if isinstance(value, str):
        return TextResourceContents(uri, value, mime_type or "text/plain", meta=said)
    if isinstance(value, _BYTES):
        blob = base64.b64encode(value).decode("ascii")
        return BlobResourceContents(uri, blob, mime_type or "application/octet-stream", meta=said)
    if value is None:
        raise InvalidResult("None; raise ResourceNotFound when there is nothing")
    try:
        text = encode_value(entry.encode(value)).decode()
    except Exception as error:
        raise InvalidResult(str(error)) from error
    return TextResourceContents(uri, text, mime_type or "application/json")


class Unscreened:
    """Marks a variable of a template whose function takes any value: ``path: Annotated[str, Unscreened()]``.

    The function itself then has to keep out what leads elsewhere, such as ``../secret`` and ``/etc/passwd``.
    """

    def __repr__(self) -> str:
        return "Unscreened()"


def unscreened_parameters(call: Callable[..., Any]) -> frozenset[str]:
    """Returns the parameters of a function that are marked with `Unscreened`."""
    hints = function_hints(call)
    return frozenset(
        name for name, hint in hints.items() if any(isinstance(each, Unscreened) for each in strip(hint)[1])
    )
