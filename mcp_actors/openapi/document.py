"""An OpenAPI document as it is read: from where, which other documents belong to it, and where its references lead.

A document may come from somewhere else. So its size, its nesting and the number of documents that belong to it have
bounds, and another document is read only from a place that the program has named: the folder or the origin of the first
one, and those in ``references``. A reference that leads anywhere else stays as it is, and what needs it is left out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit
from urllib.request import url2pathname

import httpx2
import msgspec

from mcp_actors._wire.yaml_text import is_within, load_yaml
from mcp_actors.errors import ApiDocumentError

__all__ = ["ApiDocument", "Unresolved", "list_of", "object_of", "read_document", "text_of"]

# Bytes of all documents together. The largest published one, that of GitHub, has 12 million.
MAX_BYTES = 64 * 1024 * 1024
# Documents that belong together. DigitalOcean's have some 1,800 files.
MAX_FILES = 5_000
MAX_FETCHED = 100
# JSON values of one document, those behind the aliases of YAML counted each time, and its levels of nesting.
MAX_VALUES = 5_000_000
MAX_DEPTH = 200
# References that lead to references, one after the other.
MAX_CHAIN = 50
# Seconds for one document, and redirections on the way.
FETCH_TIME = 30.0
MAX_REDIRECTS = 3

_METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
# Values that are data: a "$ref" in them is no reference.
_DATA = frozenset(("example", "examples", "default", "enum", "const"))
# Below these the keys are names that the author has chosen, such as a property that is called "example".
_BY_NAME = frozenset(
    ("$defs", "callbacks", "content", "definitions", "dependentSchemas", "headers", "parameters", "pathItems")
).union(("paths", "patternProperties", "properties", "requestBodies", "responses", "schemas"))


class Unresolved(Exception):
    """A reference leads to nothing, or to where nothing is read; the text says which."""


class ApiDocument:
    """An OpenAPI document, and those that it refers to.

    Args:
        root: The document, in which references to other documents are absolute. It is never changed.
        others: The other documents by their URIs.
        location: The URL or path that it came from, empty for one that the program made.
    """

    def __init__(self, root: dict[str, Any], others: Mapping[str, Any], location: str) -> None:
        self.root = root
        self.location = location
        self._others = others
        self._targets: dict[str, Any] = {}
        self.written: dict[tuple[object, ...], dict[str, Any]] = {}
        """What was written of the schemas that references name: see `mcp_actors.openapi.schemas`."""

    def __repr__(self) -> str:
        return f"<ApiDocument {self.location or 'of the program'} with {len(self._others)} others>"

    @property
    def is_remote(self) -> bool:
        """Whether it came over the network, so that its author is somebody else."""
        return self.location.startswith(("http://", "https://"))

    @property
    def has_old_schemas(self) -> bool:
        """Whether its schemas are those of OpenAPI 3.0, a dialect of their own, and not JSON Schema 2020-12."""
        return str(self.root.get("openapi")).startswith("3.0")

    def operations(self) -> Iterator[tuple[str, str, dict[str, Any], dict[str, Any]]]:
        """Yields the method, the path, the path item and the operation of each one, in the order of the document."""
        for path, item in object_of(self.root.get("paths")).items():
            try:
                resolved = object_of(self.resolved(item))
            except Unresolved:
                continue
            for method in _METHODS:
                try:
                    # OpenAPI has no reference here, and documents that are put together of files have one.
                    operation = self.resolved(resolved.get(method))
                except Unresolved:
                    continue
                if isinstance(operation, dict):
                    yield method.upper(), path, resolved, operation

    def resolved(self, value: Any) -> Any:
        """Returns what a reference leads to, and any other value as it is.

        Raises:
            Unresolved: The reference leads to nothing that was read, or in a circle.
        """
        for _ in range(MAX_CHAIN):
            reference = value.get("$ref") if isinstance(value, dict) else None
            if not isinstance(reference, str):
                return value
            value = self.target(reference)
        raise Unresolved("a reference leads to itself")

    def target(self, reference: str) -> Any:
        """Returns the value that a reference names.

        Raises:
            Unresolved: There is none.
        """
        if reference not in self._targets:
            self._targets[reference] = self._find(reference)
        return self._targets[reference]

    def _find(self, reference: str) -> Any:
        uri, pointer = urldefrag(reference)
        value = self.root if not uri else self._others.get(uri)
        if value is None:
            raise Unresolved(f"{reference[:200]} was not read: add its place to references=")
        pointer = unquote(pointer)
        if pointer and not pointer.startswith("/"):
            raise Unresolved(f"{reference[:200]} is no JSON Pointer")
        for step in pointer.split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and name in value:
                value = value[name]
            elif isinstance(value, list) and name.isascii() and name.isdigit() and int(name) < len(value):
                value = value[int(name)]
            else:
                raise Unresolved(f"{reference[:200]} leads to nothing")
        return value


def object_of(value: Any) -> dict[str, Any]:
    """Returns a JSON object as it is, and an empty one for any other value: a document may have a mistake anywhere."""
    return value if isinstance(value, dict) else {}


def list_of(value: Any) -> list[Any]:
    """Returns an array as it is, and an empty one for any other value."""
    return value if isinstance(value, list) else []


def text_of(value: Any) -> str:
    """Returns a text as it is, and an empty one for any other value."""
    return value if isinstance(value, str) else ""


def read_document(source: str | Path | Mapping[str, Any], *, references: Collection[str] = ()) -> ApiDocument:
    """Reads a document and those that belong to it. Waits for files and the network, in the thread that calls it.

    Args:
        source: A URL, a path, or the document itself as parsed JSON.
        references: Beginnings of URLs, and folders, from which other documents may be read besides the folder or the
            origin of the first one.

    Raises:
        ApiDocumentError: It cannot be read, is neither JSON nor YAML, is over a bound, or is not OpenAPI 3.0 or 3.1.
        ImportError: It is YAML, and the extra ``openapi`` is missing.
    """
    return _DocumentReading(source, references).document()


class _DocumentReading:
    """Reads one document and, from the places that are allowed, all those that it leads to."""

    def __init__(self, source: str | Path | Mapping[str, Any], references: Collection[str]) -> None:
        if isinstance(references, str):
            raise TypeError(f"references= is a list of places, such as {[references]!r}")
        self._source = source
        self._bytes = 0
        self._fetched = 0
        self._folders = [Path(each).resolve() for each in references if not _is_url(each)]
        self._origins = [each for each in references if _is_url(each)]
        for each in self._origins:
            if not urlsplit(each).path:
                raise ValueError(f"references={each!r}: a place ends with its path, such as {each + '/'!r}")

    def document(self) -> ApiDocument:
        source = self._source
        if isinstance(source, Mapping):
            root = msgspec.json.decode(msgspec.json.encode(source))
            base = location = ""
        elif isinstance(source, str) and _is_url(source):
            location, _ = urldefrag(source)
            base = location
            self._origins.append(_origin(base) + "/")
            root = self._parsed(self._download(base), location)
        else:
            path = Path(source)
            location = str(source)
            base = path.resolve().as_uri()
            self._folders.append(path.resolve().parent)
            root = self._parsed(self._file(path, location), location)
        _check_version(root, location or "the document")
        others: dict[str, Any] = {}
        pending = [(root, base)]
        while pending:
            value, at = pending.pop()
            for uri in _make_absolute(value, at, base):
                if uri not in others and (found := self._other(uri)) is not None:
                    others[uri] = found
                    if len(others) > MAX_FILES:
                        raise ApiDocumentError(f"it refers to more than {MAX_FILES} documents", file=location)
                    pending.append((found, uri))
        return ApiDocument(root, others, location)

    def _other(self, uri: str) -> Any:
        """Returns another document, and ``None`` for one that may not be read or does not exist."""
        try:
            if uri.startswith("file:"):
                path = Path(url2pathname(urlsplit(uri).path)).resolve()
                if not any(path.is_relative_to(folder) for folder in self._folders):
                    return None
                return self._parsed(self._file(path, uri), uri)
            if _is_url(uri) and self._may_fetch(uri):
                self._fetched += 1
                return None if self._fetched > MAX_FETCHED else self._parsed(self._download(uri), uri)
        except _Missing:
            pass
        return None

    def _may_fetch(self, url: str) -> bool:
        # The beginning of a place ends behind its host, so that no other host begins with it.
        return any(url.startswith(each) for each in self._origins) and "/../" not in unquote(url)

    def _file(self, path: Path, shown: str) -> bytes:
        try:
            with path.open("rb") as file:
                return self._counted(file.read(MAX_BYTES - self._bytes + 1), shown)
        except OSError as error:
            raise _Missing(f"it cannot be read: {error.strerror or error}", file=shown) from None

    def _download(self, url: str) -> bytes:
        try:
            with httpx2.Client(timeout=FETCH_TIME, follow_redirects=False) as client:
                for _ in range(MAX_REDIRECTS + 1):
                    with client.stream("GET", url) as response:
                        location = response.headers.get("location")
                        if response.is_redirect and location:
                            following = urljoin(url, location)
                            if not self._may_fetch(following):
                                raise _Missing(
                                    f"it redirects to {_shown(following)}: name that", file=_shown(url)
                                )
                            url = following
                            continue
                        if response.status_code != 200:
                            raise _Missing(f"HTTP {response.status_code}", file=_shown(url))
                        body = bytearray()
                        for chunk in response.iter_bytes():
                            body += chunk
                            self._counted(body, url)
                        self._bytes += len(body)
                        return bytes(body)
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise _Missing(f"it cannot be read: {error or type(error).__name__}", file=_shown(url)) from error
        raise _Missing(f"it redirects more than {MAX_REDIRECTS} times", file=_shown(url))

    def _counted(self, body: bytes | bytearray, shown: str) -> bytes:
        if self._bytes + len(body) > MAX_BYTES:
            raise ApiDocumentError(f"the documents have more than {MAX_BYTES} bytes", file=_shown(shown))
        if isinstance(body, bytes):
            self._bytes += len(body)
            return body
        return b""

    def _parsed(self, text: bytes, shown: str) -> Any:
        value = _parsed(text, _shown(shown))
        _check_extent(value, _shown(shown))
        return value


class _Missing(ApiDocumentError):
    """A document cannot be had; of another one than the first, what needs it is left out."""


def _is_url(text: str) -> bool:
    return text.lower().startswith(("http://", "https://"))


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _shown(url: str) -> str:
    """Returns a URL for messages, without its query, which may hold a secret."""
    return url.partition("?")[0][:200]


def _parsed(text: bytes, shown: str) -> Any:
    if text.lstrip()[:1] in (b"{", b"["):
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ApiDocumentError(f"it is no JSON: {error}", file=shown) from None
    try:
        return load_yaml(text)
    except ImportError:
        raise ImportError(
            f"{shown} is YAML, which needs a library: pip install 'pyyaml>=6.0.2', or write it as JSON"
        ) from None
    except ValueError as error:
        raise ApiDocumentError(f"it is neither JSON nor YAML: {error}", file=shown) from None


def _check_extent(value: Any, shown: str) -> None:
    if not is_within(value, MAX_VALUES, MAX_DEPTH):
        raise ApiDocumentError(
            f"it has more than {MAX_VALUES} values, or {MAX_DEPTH} levels of them", file=shown
        )


def _check_version(root: Any, shown: str) -> None:
    found = root.get("openapi") if isinstance(root, dict) else None
    if isinstance(root, dict) and "swagger" in root:
        raise ApiDocumentError(
            f"it is Swagger {root['swagger']!s:.10}: convert it to OpenAPI 3 first, for example by npx swagger2openapi",
            file=shown,
        )
    if not isinstance(found, str) or not re.match(r"3\.[012](\.|$)", found):
        raise ApiDocumentError(
            f"it is no OpenAPI document of version 3.0 or 3.1: its member 'openapi' is {found!r:.40}",
            file=shown,
        )


def _make_absolute(value: Any, at: str, base: str) -> list[str]:
    """Writes the references in a document as absolute URIs, those to ``base`` without it; returns the documents."""
    found: dict[str, None] = {}
    seen: set[int] = set()
    pending = [(value, False)]
    while pending:
        value, named = pending.pop()
        if id(value) in seen:
            continue
        if isinstance(value, list):
            seen.add(id(value))
            pending.extend((each, False) for each in value)
        elif isinstance(value, dict):
            seen.add(id(value))
            reference = value.get("$ref")
            if isinstance(reference, str) and not named:
                uri, pointer = urldefrag(reference)
                uri = urljoin(at, uri) if uri else at
                if uri == base:
                    uri = ""
                elif uri:
                    found[uri] = None
                value["$ref"] = f"{uri}#{pointer}"
            pending.extend(
                (each, key in _BY_NAME and not named)
                for key, each in value.items()
                if named or key not in _DATA
            )
    return list(found)
