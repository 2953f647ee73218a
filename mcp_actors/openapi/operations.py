"""One operation of a document: what a model calls it, which arguments it takes, and where each of them goes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from typing import Any, Literal

import attrs
import msgspec

from mcp_actors.openapi.document import ApiDocument, Unresolved, list_of, object_of, text_of
from mcp_actors.openapi.schemas import FILE_SCHEMA, flat_schema, is_file, plain_text, read_schema

__all__ = ["Body", "Operation", "OperationArgument", "SecurityScheme", "read_operations"]

# What hosts accept: 64 characters, a letter or "_" first; ``docs/reference/hosts.md`` has the sources.
MOST_NAME = 64
# Characters of a description for models, and of a title for people.
MOST_DESCRIPTION = 700
MOST_TITLE = 80
# Characters of JSON of the schema of one argument that is not in the body, and of a result.
MOST_OF_ARGUMENT = 3_000
MOST_OF_RESULT = 12_000
# Names of arguments by which APIs ask for the next part of a list.
_PAGES = re.compile(
    r"(page|pages?_?(number|token|no)|pageToken|cursor|next_?(token|cursor)|offset|start(ing_after)?|after|marker|continue)\Z",
    re.IGNORECASE,
)
# RFC 9110: what a request says of itself. A model must not write these.
_OWN_HEADERS = frozenset(
    ("accept", "accept-encoding", "authorization", "connection", "content-length", "content-type", "cookie")
).union(
    ("expect", "host", "keep-alive", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade")
)

# RFC 9110 section 5.6.2.
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

Place = Literal["path", "query", "header", "cookie"]
_PLACES: tuple[Place, ...] = ("path", "query", "header", "cookie")
_DEFAULT_STYLES = {"path": "simple", "query": "form", "header": "simple", "cookie": "form"}
_STYLES = {
    "path": ("simple", "label", "matrix"),
    "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "header": ("simple",),
    "cookie": ("form",),
}


class OperationArgument(msgspec.Struct, frozen=True):
    """A parameter: what a model writes under ``name``, and how it is sent (OpenAPI, Parameter Object)."""

    name: str
    place: Place
    wire: str
    """Its name in the document."""
    style: str
    explode: bool
    allow_reserved: bool
    as_json: bool
    """Whether it is sent as JSON, because the document gives it a media type and no style."""
    required: bool
    schema: dict[str, Any]


class Body(msgspec.Struct, frozen=True):
    """The body of a request. Either ``argument`` is the whole of it, or ``members`` are arguments of their own."""

    media_type: str
    kind: Literal["json", "form", "multipart", "text", "bytes"]
    required: bool
    argument: str = ""
    members: Mapping[str, str] = {}
    """The members of the body by the names of the arguments."""
    files: frozenset[str] = frozenset()
    """The members that are files."""
    encoding: Mapping[str, Any] = {}
    """How members of forms are written: OpenAPI, Encoding Object."""


class SecurityScheme(msgspec.Struct, frozen=True):
    """A way in which an API knows its callers (OpenAPI, Security Scheme Object).

    ``kind`` is what is sent: ``"bearer"``, ``"basic"``, or an ``"apiKey"`` that goes into ``place`` under the name
    ``parameter``. ``scopes`` are those that the operation needs.
    """

    name: str
    kind: Literal["bearer", "basic", "apiKey", "other"]
    place: Literal["header", "query", "cookie"] = "header"
    parameter: str = ""
    scopes: tuple[str, ...] = ()


@attrs.frozen(eq=False)
class Operation:
    """An operation of an API, with everything decided that does not depend on a call.

    Patterns and functions of ``routes=`` look at ``method``, ``path``, ``operation_id``, ``tags``, ``deprecated`` and
    ``internal``. ``name`` is that of its tool.
    """

    method: str
    path: str
    name: str
    operation_id: str
    tags: tuple[str, ...]
    title: str
    description: str
    deprecated: bool
    internal: bool
    arguments: tuple[OperationArgument, ...]
    body: Body | None
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None
    security: tuple[tuple[SecurityScheme, ...], ...]
    """Alternatives, each of which is enough; an empty one means that anybody may call."""
    servers: tuple[Mapping[str, Any], ...]
    """Those of the operation alone; none where it has those of the document."""
    problem: str = ""
    """Why no request can be made of it; empty for most."""

    def __repr__(self) -> str:
        return f"<Operation {self.name}: {self.method} {self.path}>"

    @property
    def is_safe(self) -> bool:
        """Whether a call changes nothing (RFC 9110 section 9.2.1)."""
        return self.method in ("GET", "HEAD", "OPTIONS", "TRACE")

    @property
    def is_idempotent(self) -> bool:
        """Whether a second call changes nothing more (RFC 9110 section 9.2.2)."""
        return self.is_safe or self.method in ("PUT", "DELETE")


def read_operations(document: ApiDocument) -> list[Operation]:
    """Returns all operations of a document, in its order, each with a name of its own.

    The names depend on the document alone, and not on which of its operations become tools.
    """
    names = _Names()
    return [
        _OperationReader(document, method, path, item, operation, names).operation()
        for method, path, item, operation in document.operations()
    ]


class _Names:
    """Names that hosts accept, each given once."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def of(self, operation_id: str, method: str, path: str) -> str:
        wanted = re.sub(r"[^A-Za-z0-9]+", "_", operation_id or f"{method.lower()} {path}").strip("_")
        name = wanted if re.match("[A-Za-z]", wanted) else f"_{wanted}"
        mark = hashlib.sha256(f"{method} {path}".encode()).hexdigest()[:8]
        if len(name) > MOST_NAME:
            name = f"{name[: MOST_NAME - 9].rstrip('_')}_{mark}"
        if name.lower() in self._given:
            name = f"{name[: MOST_NAME - 9].rstrip('_')}_{mark}"
        self._given.add(name.lower())
        return name


class _Unusable(Exception):
    """No request can be made of an operation; the text says why."""


class _OperationReader:
    """Reads one operation."""

    def __init__(
        self,
        document: ApiDocument,
        method: str,
        path: str,
        item: Any,
        operation: dict[str, Any],
        names: _Names,
    ) -> None:
        self._document = document
        self._method = method
        self._path = path
        self._item = item
        self._operation = operation
        self._id = text_of(operation.get("operationId"))
        self._name = names.of(self._id, method, path)
        self._taken: set[str] = set()

    def operation(self) -> Operation:
        given = self._operation
        problem = ""
        arguments: tuple[OperationArgument, ...] = ()
        body: Body | None = None
        schema: dict[str, Any] = {"type": "object", "properties": {}}
        output = None
        security: tuple[tuple[SecurityScheme, ...], ...] = ()
        try:
            parameters = self._parameters()
            security = self._security(parameters)
            arguments = self._arguments(parameters, security)
            body, members, needed = self._body()
            schema = _input_schema(arguments, members, needed)
            output = self._output_schema()
        except (_Unusable, Unresolved) as unusable:
            problem = str(unusable)
        return Operation(
            method=self._method,
            path=self._path,
            name=self._name,
            operation_id=self._id,
            tags=tuple(each for each in list_of(given.get("tags")) if isinstance(each, str)),
            title=plain_text(text_of(given.get("summary")), MOST_TITLE),
            description=self._description(arguments),
            deprecated=given.get("deprecated") is True,
            internal=any(each.get("x-internal") is True for each in (given, self._item)),
            arguments=arguments,
            body=body,
            input_schema=schema,
            output_schema=output,
            security=security,
            servers=tuple(
                each
                for each in list_of(given.get("servers") or self._item.get("servers"))
                if isinstance(each, dict)
            ),
            problem=problem,
        )

    def _description(self, arguments: Collection[OperationArgument]) -> str:
        summary = plain_text(text_of(self._operation.get("summary")), MOST_TITLE)
        text = plain_text(text_of(self._operation.get("description")), MOST_DESCRIPTION)
        # Many descriptions begin with the summary.
        parts = (
            [text]
            if text.lower().startswith(summary.rstrip(".").lower())
            else [f"{summary.rstrip('.')}.", text]
        )
        said = " ".join(each for each in parts if each) or f"{self._method} {self._path}"
        pages = [each.name for each in arguments if each.place == "query" and _PAGES.match(each.wire)]
        if pages:
            said += f" A result is one page: ask for another one with {' or '.join(pages[:2])}."
        if self._operation.get("deprecated") is True:
            said += " Deprecated."
        return said

    # -- parameters ----------------------------------------------------------------------------------------------

    def _parameters(self) -> dict[tuple[str, str], dict[str, Any]]:
        """The parameters as they are written, by name and place."""
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for each in (*list_of(self._item.get("parameters")), *list_of(self._operation.get("parameters"))):
            given = object_of(self._document.resolved(each))
            place, wire = text_of(given.get("in")), text_of(given.get("name"))
            if place in _PLACES and wire:
                # Those of the operation replace those of the path.
                found[wire, place] = given
        return found

    def _arguments(
        self,
        parameters: Mapping[tuple[str, str], dict[str, Any]],
        security: Collection[Collection[SecurityScheme]],
    ) -> tuple[OperationArgument, ...]:
        of_schemes = {
            (each.parameter.lower(), each.place)
            for alternative in security
            for each in alternative
            if each.kind == "apiKey"
        }
        arguments = []
        for place in _PLACES:
            for (wire, where), given in parameters.items():
                if where != place:
                    continue
                is_own = place == "header" and wire.lower() in _OWN_HEADERS
                if is_own or (wire.lower(), place) in of_schemes:
                    continue
                required = given.get("required") is True or place == "path"
                if not required and (given.get("deprecated") is True or given.get("x-internal") is True):
                    continue
                arguments.append(self._argument(given, place, wire, required))
        in_path = set(re.findall(r"\{([^{}]+)\}", self._path))
        if missing := in_path - {each.wire for each in arguments if each.place == "path"}:
            raise _Unusable(f"its path has {{{min(missing)}}}, of which it says nothing")
        return tuple(each for each in arguments if each.place != "path" or each.wire in in_path)

    def _argument(self, given: dict[str, Any], place: Place, wire: str, required: bool) -> OperationArgument:
        content = object_of(given.get("content"))
        style = text_of(given.get("style")) or _DEFAULT_STYLES[place]
        if place == "header" and not _TOKEN.fullmatch(wire):
            raise _Unusable(f"its header {wire!r:.80} has a name that no header can have")
        if style not in _STYLES[place]:
            raise _Unusable(f"its parameter {wire} has the style {style}, which there is not in {place}")
        explode = given.get("explode")
        media = object_of(next(iter(content.values()), None)) if content else {}
        schema = media.get("schema") if content else given.get("schema")
        written = read_schema(self._document, schema, sent=True, most=MOST_OF_ARGUMENT)
        if text := plain_text(text_of(given.get("description")), 300):
            written["description"] = text
        return OperationArgument(
            name=self._argument_name(wire, place),
            place=place,
            wire=wire,
            style=style,
            explode=explode if isinstance(explode, bool) else style == "form",
            allow_reserved=given.get("allowReserved") is True,
            as_json=bool(content),
            required=required,
            schema=written,
        )

    def _argument_name(self, wire: str, place: str) -> str:
        """A name that providers of models accept for a property, and that no other argument has."""
        plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", wire)[:MOST_NAME].strip("_") or "value"
        name, number = plain, 1
        while name in self._taken:
            number += 1
            name = f"{plain[: MOST_NAME - 12]}_{place}{'' if number == 2 else number}"
        self._taken.add(name)
        return name

    # -- the body ------------------------------------------------------------------------------------------------

    def _body(self) -> tuple[Body | None, dict[str, Any], list[str]]:
        """Returns the body, the schemas of its arguments, and those that are required."""
        given = object_of(self._document.resolved(self._operation.get("requestBody")))
        content = object_of(given.get("content"))
        if not content:
            return None, {}, []
        media_type, kind = _preferred(content)
        media = object_of(content[media_type])
        required = given.get("required") is True
        encoding = object_of(media.get("encoding"))
        sends_files = kind in ("multipart", "bytes")
        if kind == "bytes":
            schema: dict[str, Any] = dict(FILE_SCHEMA)
        elif kind == "text":
            schema = {"type": "string"}
        else:
            schema = read_schema(self._document, media.get("schema"), sent=True, files=sends_files)
        if text := plain_text(text_of(given.get("description")), 300):
            schema.setdefault("description", text)
        body = Body(media_type, kind, required, encoding=encoding)
        members = object_of(schema.get("properties"))
        needed = [each for each in list_of(schema.get("required")) if isinstance(each, str)]
        if kind in ("form", "multipart"):
            if not members:
                # Stripe's document has empty forms for requests that have no body.
                return None, {}, []
            body = msgspec.structs.replace(body, files=self._files(media.get("schema")))
        is_open = schema.get("additionalProperties", False) is not False
        has_place = members and kind in ("json", "form", "multipart") and (required or not needed)
        if has_place and not is_open and "anyOf" not in schema:
            names = {self._argument_name(each, "body"): each for each in members}
            arguments = {name: members[each] for name, each in names.items()}
            wanted = [name for name, each in names.items() if each in needed]
            return msgspec.structs.replace(body, members=names), arguments, wanted
        name = self._argument_name("body", "body")
        return msgspec.structs.replace(body, argument=name), {name: schema}, [name] if required else []

    def _files(self, schema: Any) -> frozenset[str]:
        found = set()
        for name, each in object_of(flat_schema(self._document, schema).get("properties")).items():
            flat = flat_schema(self._document, each)
            if is_file(flat) or is_file(flat_schema(self._document, flat.get("items"))):
                found.add(name)
        return frozenset(found)

    # -- results and access --------------------------------------------------------------------------------------

    def _output_schema(self) -> dict[str, Any] | None:
        """The schema of a successful result; ``None`` where there may be one that is no JSON, or none at all."""
        responses = object_of(self._operation.get("responses"))
        good = {code: each for code, each in responses.items() if re.fullmatch("2([0-9][0-9]|XX)", str(code))}
        schemas: list[dict[str, Any]] = []
        for each in (good or {"default": responses.get("default")}).values():
            try:
                content = object_of(object_of(self._document.resolved(each)).get("content"))
            except Unresolved:
                return None
            media = [object_of(value).get("schema") for name, value in content.items() if _is_json(name)]
            if not media:
                return None
            for schema in media:
                written = read_schema(self._document, schema, sent=False, most=MOST_OF_RESULT)
                if not written:
                    return None
                if written not in schemas:
                    schemas.append(written)
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}

    def _security(
        self, parameters: Mapping[tuple[str, str], dict[str, Any]]
    ) -> tuple[tuple[SecurityScheme, ...], ...]:
        given = self._operation.get("security", self._document.root.get("security"))
        schemes = object_of(object_of(self._document.root.get("components")).get("securitySchemes"))
        found = []
        for alternative in list_of(given):
            each = tuple(
                _scheme(name, object_of(self._document.resolved(schemes.get(name))), list_of(scopes))
                for name, scopes in object_of(alternative).items()
            )
            found.append(each)
        # Some documents list as alternatives what each operation wants together, as parameters that are required.
        needed = {
            (wire.lower(), place)
            for (wire, place), each in parameters.items()
            if each.get("required") is True
        }
        always = {
            each.name: each
            for alternative in found
            for each in alternative
            if each.kind == "apiKey" and (each.parameter.lower(), each.place) in needed
        }
        alternatives: dict[frozenset[str], tuple[SecurityScheme, ...]] = {}
        for alternative in found:
            whole = {each.name: each for each in alternative} | always
            alternatives.setdefault(frozenset(whole), tuple(whole.values()))
        return tuple(alternatives.values())


def _scheme(name: str, given: dict[str, Any], scopes: list[Any]) -> SecurityScheme:
    needed = tuple(each for each in scopes if isinstance(each, str))
    kind, place = given.get("type"), given.get("in")
    if kind == "apiKey" and place in ("header", "query", "cookie"):
        return SecurityScheme(name, "apiKey", place, text_of(given.get("name")), needed)
    if kind == "http" and text_of(given.get("scheme")).lower() == "basic":
        return SecurityScheme(name, "basic", scopes=needed)
    if kind in ("oauth2", "openIdConnect") or text_of(given.get("scheme")).lower() == "bearer":
        return SecurityScheme(name, "bearer", scopes=needed)
    return SecurityScheme(name, "other", scopes=needed)


def _input_schema(
    arguments: Collection[OperationArgument], members: Mapping[str, Any], needed: Collection[str]
) -> dict[str, Any]:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {**{each.name: each.schema for each in arguments}, **members},
    }
    required = [*(each.name for each in arguments if each.required), *needed]
    if required:
        schema["required"] = required
    schema["additionalProperties"] = False
    return schema


def _is_json(media_type: str) -> bool:
    plain = media_type.partition(";")[0].strip().lower()
    return plain in ("application/json", "text/json", "*/*", "application/*") or plain.endswith("+json")


def _preferred(
    content: Mapping[str, Any],
) -> tuple[str, Literal["json", "form", "multipart", "text", "bytes"]]:
    """The media type that a body is sent as: the one that a model can write best."""
    ranked: list[tuple[int, str, Literal["json", "form", "multipart", "text", "bytes"]]] = []
    for name in content:
        plain = name.partition(";")[0].strip().lower()
        if plain == "application/json":
            ranked.append((0, name, "json"))
        elif _is_json(name):
            # JSON Patch and its like are something else than the object that they change.
            ranked.append((1 if "patch" not in plain else 5, name, "json"))
        elif plain == "multipart/form-data":
            ranked.append((2, name, "multipart"))
        elif plain == "application/x-www-form-urlencoded":
            ranked.append((3, name, "form"))
        elif plain.startswith("text/") or plain.endswith(("xml", "yaml")):
            ranked.append((4, name, "text"))
        else:
            ranked.append((6, name, "bytes"))
    _, name, kind = min(ranked, key=lambda each: each[0])
    return name, kind
