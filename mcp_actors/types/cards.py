"""Server cards, catalogues, and what the MCP registry calls ``server.json``: how they are written, and checked.

A card says what a remote server is before anybody connects to it (SEP-2127, a draft; its repository is
modelcontextprotocol/experimental-ext-server-card): name, version, description and where it is. It has no tools, prompts
or resources, and nothing that depends on who asks. A catalogue at a well-known path of a domain names the cards of its
servers (the AI Catalog, in the form that the draft wants). The registry's document is the same information with
packages, and without the revisions.

A name is in reverse-DNS form with one slash, such as ``com.example/weather``. A card claims it; nothing proves it, so
that nothing may be decided by a card (SEP-2127, Consistency with Runtime Behavior).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from mcp_actors.types.lifecycle import Implementation

__all__ = [
    "CARD_SUFFIX",
    "CARD_TYPE",
    "CATALOG_PATH",
    "CATALOG_TYPE",
    "card_of",
    "cards_in",
    "catalog_of",
    "etag_of",
    "is_card_name",
    "problems_of",
    "registry_document",
    "remote_url",
]

CARD_TYPE = "application/mcp-server-card+json"
CATALOG_TYPE = "application/ai-catalog+json"
CATALOG_PATH = "/.well-known/ai-catalog.json"
CARD_SUFFIX = "/server-card"
"""What follows the URL of Streamable HTTP."""
CARD_SCHEMA = "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json"
REGISTRY_SCHEMA = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
LONGEST_DESCRIPTION = 100
LONGEST_TITLE = 100
# Entries of a catalogue that are looked at.
MOST_ENTRIES = 1000

_NAME = re.compile(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+")
_REMOTE_URL = re.compile(r"https?://\S+|\{[a-zA-Z_][a-zA-Z0-9_]*\}\S*")
_RANGE = re.compile(r"[\^~<>=*|]|(?:^|\.)[xX](?:\.|$)")
_REGISTRY_SCHEMA = re.compile(
    r"https://static\.modelcontextprotocol\.io/schemas/\d{4}-\d{2}-\d{2}/server\.schema\.json"
)
_SHA256 = re.compile(r"[a-f0-9]{64}")
_FORMATS = ("string", "number", "boolean", "filepath")


def is_card_name(text: str) -> bool:
    """Whether a text is the name of a server in a card: a namespace, one slash, and the name in it."""
    return 3 <= len(text) <= 200 and _NAME.fullmatch(text) is not None


# -- written ---------------------------------------------------------------------------------------------------------


def card_of(
    name: str,
    info: Implementation,
    remotes: Sequence[tuple[str, Sequence[str]]] = (),
    description: str | None = None,
) -> dict[str, Any]:
    """Returns the card of a server.

    Args:
        name: Its name in reverse-DNS form.
        info: What it says of itself.
        remotes: The URLs of Streamable HTTP where it is, and the revisions that are spoken there.
        description: Says what it does, for people; by default what it says itself, else its name. Longer texts are cut.
    """
    said = description or info.description or f"The server {info.name or name}."
    card: dict[str, Any] = {
        "$schema": CARD_SCHEMA,
        "name": name,
        "version": info.version or "0",
        "description": _cut(" ".join(said.split()), LONGEST_DESCRIPTION),
    }
    if info.title:
        card["title"] = _cut(info.title, LONGEST_TITLE)
    if info.website_url:
        card["websiteUrl"] = info.website_url
    if info.icons:
        members = (("src", "src"), ("mime_type", "mimeType"), ("sizes", "sizes"), ("theme", "theme"))
        card["icons"] = [
            {shown: value for name, shown in members if (value := getattr(icon, name)) is not None}
            for icon in info.icons
        ]
    if remotes:
        card["remotes"] = [
            {
                "type": "streamable-http",
                "url": url,
                **({"supportedProtocolVersions": list(versions)} if versions else {}),
            }
            for url, versions in remotes
        ]
    return card


def registry_document(card: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the registry's ``server.json`` of what a card says; packages are for its author to add."""
    document = {**card, "$schema": REGISTRY_SCHEMA}
    if "remotes" in card:
        document["remotes"] = [
            {key: each for key, each in remote.items() if key != "supportedProtocolVersions"}
            for remote in card["remotes"]
        ]
    return document


def catalog_of(cards: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Returns the catalogue of a domain; ``cards`` are names of servers and the URLs of their cards."""
    return {
        "specVersion": "1.0",
        "entries": [{"identifier": _identifier(name), "type": CARD_TYPE, "url": url} for name, url in cards],
    }


def _identifier(name: str) -> str:
    """``com.example/weather`` is ``urn:air:example.com:mcp:weather``, because a publisher is a domain there."""
    namespace, _, short = name.partition("/")
    return f"urn:air:{'.'.join(reversed(namespace.split('.')))}:mcp:{short}"


def etag_of(document: bytes) -> str:
    """Returns the entity tag of a document."""
    return f'"{hashlib.sha256(document).hexdigest()[:32]}"'


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


# -- read ------------------------------------------------------------------------------------------------------------


def cards_in(catalog: Any) -> list[str | dict[str, Any]]:
    """Returns the cards that a catalogue names: URLs, and cards that are in it. Other entries are left aside.

    Raises:
        ValueError: It is not a catalogue.
    """
    entries = catalog.get("entries") if isinstance(catalog, dict) else None
    if not isinstance(entries, list):
        raise ValueError("it has no array 'entries'")
    found: list[str | dict[str, Any]] = []
    for entry in entries[:MOST_ENTRIES]:
        if not isinstance(entry, dict) or entry.get("type") != CARD_TYPE:
            continue
        url, data = entry.get("url"), entry.get("data")
        if isinstance(url, str) and data is None:
            found.append(url)
        elif isinstance(data, dict) and url is None:
            found.append(data)
    return found


def remote_url(card: Mapping[str, Any]) -> str | None:
    """Returns the first URL of Streamable HTTP in a card that needs nothing filled in, ``None`` without one."""
    remotes = card.get("remotes")
    for remote in remotes if isinstance(remotes, list) else ():
        if isinstance(remote, dict) and remote.get("type") == "streamable-http":
            url = remote.get("url")
            if isinstance(url, str) and "{" not in url and _is_http(url):
                return url
    return None


def _is_http(url: str) -> bool:
    try:
        return urlsplit(url).scheme in ("http", "https")
    except ValueError:
        return False


# -- checked ---------------------------------------------------------------------------------------------------------


def problems_of(document: Any) -> list[str]:
    """Returns what is wrong with a card, or with a ``server.json``, which its ``$schema`` tells apart; else nothing."""
    if not isinstance(document, dict):
        return ["it is not a JSON object"]
    schema = document.get("$schema")
    is_registry = isinstance(schema, str) and _REGISTRY_SCHEMA.fullmatch(schema) is not None
    found = list(_common_problems(document))
    if is_registry:
        found += _each("packages", document, _package_problems)
    else:
        if schema != CARD_SCHEMA:
            found.insert(0, f"$schema is {CARD_SCHEMA}, or for the registry a dated .../server.schema.json")
        if "packages" in document:
            found.append("packages are for the registry's server.json: a card is of a remote server")
    found += _each("remotes", document, _remote_problems)
    found += _each("icons", document, _icon_problems)
    return found


def _common_problems(document: Mapping[str, Any]) -> Iterator[str]:
    name = document.get("name")
    if not isinstance(name, str) or not is_card_name(name):
        yield "name is a namespace in reverse-DNS form, one slash and a name: com.example/weather"
    version = document.get("version")
    if not isinstance(version, str) or len(version) > 255:
        yield "version is a text of up to 255 characters"
    elif _RANGE.search(version) or " - " in version:
        yield f"version is one version, and {version[:80]!r} is a range"
    yield from _text(document, "description", 1, LONGEST_DESCRIPTION, is_required=True)
    yield from _text(document, "title", 1, LONGEST_TITLE)
    if "websiteUrl" in document and not _is_uri(document["websiteUrl"]):
        yield "websiteUrl is a URL"
    if "repository" in document:
        repository = document["repository"]
        if not isinstance(repository, dict):
            yield "repository is an object"
        else:
            if not _is_uri(repository.get("url")):
                yield "repository.url is a URL"
            yield from _text(repository, "source", 1, None, is_required=True, where="repository.")
            for member in ("subfolder", "id"):
                yield from _text(repository, member, 1, None, where="repository.")
            folder = repository.get("subfolder")
            if isinstance(folder, str) and (folder.startswith("/") or ".." in folder.split("/")):
                yield "repository.subfolder is a relative path without .."
    if "_meta" in document and not isinstance(document["_meta"], dict):
        yield "_meta is an object"


def _text(
    of: Mapping[str, Any],
    member: str,
    least: int,
    most: int | None,
    *,
    is_required: bool = False,
    where: str = "",
) -> Iterator[str]:
    if member not in of:
        if is_required:
            yield f"{where}{member} is missing"
        return
    value = of[member]
    if not isinstance(value, str) or len(value) < least or (most is not None and len(value) > most):
        yield f"{where}{member} is a text" + ("" if most is None else f" of {least} to {most} characters")


def _texts(of: Mapping[str, Any], member: str) -> Iterator[str]:
    value = of.get(member, [])
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        yield f"{member} is an array of texts"


def _is_uri(value: Any) -> bool:
    if not isinstance(value, str) or re.fullmatch(r"[a-zA-Z][a-zA-Z0-9+.-]*:\S+", value) is None:
        return False
    try:
        urlsplit(value)
    except ValueError:
        return False
    return True


def _each(
    member: str, of: Mapping[str, Any], check: Callable[[Mapping[str, Any]], Iterator[str]]
) -> Iterator[str]:
    if member not in of:
        return
    value = of[member]
    if not isinstance(value, list):
        yield f"{member} is an array"
        return
    for index, each in enumerate(value):
        if not isinstance(each, dict):
            yield f"{member}[{index}] is an object"
            continue
        for problem in check(each):
            yield f"{member}[{index}].{problem}"


def _remote_problems(remote: Mapping[str, Any]) -> Iterator[str]:
    if remote.get("type") not in ("streamable-http", "sse"):
        yield "type is streamable-http or sse"
    url = remote.get("url")
    if not isinstance(url, str) or _REMOTE_URL.fullmatch(url) is None:
        yield "url begins with http://, https:// or a {variable}, and has no blanks"
    yield from _inputs(remote, "variables")
    yield from _each("headers", remote, _named_input_problems)
    yield from _texts(remote, "supportedProtocolVersions")


def _inputs(of: Mapping[str, Any], member: str) -> Iterator[str]:
    value = of.get(member, {})
    if not isinstance(value, dict) or not all(isinstance(each, dict) for each in value.values()):
        yield f"{member} is an object of objects"
        return
    for name, each in value.items():
        for problem in _input_problems(each):
            yield f"{member}.{name}.{problem}"


def _named_input_problems(value: Mapping[str, Any]) -> Iterator[str]:
    yield from _text(value, "name", 1, None, is_required=True)
    yield from _input_problems(value)
    yield from _inputs(value, "variables")


def _input_problems(value: Mapping[str, Any]) -> Iterator[str]:
    for member in ("description", "default", "placeholder", "value"):
        yield from _text(value, member, 0, None)
    for member in ("isRequired", "isSecret"):
        if not isinstance(value.get(member, False), bool):
            yield f"{member} is true or false"
    if value.get("format", "string") not in _FORMATS:
        yield f"format is one of {', '.join(_FORMATS)}"
    if value.get("isSecret") is True and value.get("default"):
        yield "default of a secret would be a secret that everybody reads"
    yield from _texts(value, "choices")


def _icon_problems(icon: Mapping[str, Any]) -> Iterator[str]:
    if not _is_uri(icon.get("src")):
        yield "src is a URL"
    yield from _text(icon, "mimeType", 1, None)
    yield from _texts(icon, "sizes")
    if icon.get("theme", "light") not in ("light", "dark"):
        yield "theme is light or dark"


def _package_problems(package: Mapping[str, Any]) -> Iterator[str]:
    for member in ("registryType", "identifier"):
        yield from _text(package, member, 1, None, is_required=True)
    yield from _text(package, "version", 1, 255)
    version = package.get("version")
    if version == "latest" or (isinstance(version, str) and _RANGE.search(version)):
        yield "version is one version, neither latest nor a range"
    digest = package.get("fileSha256")
    if digest is not None and (not isinstance(digest, str) or _SHA256.fullmatch(digest) is None):
        yield "fileSha256 is 64 hexadecimal digits"
    transport = package.get("transport")
    if not isinstance(transport, dict) or transport.get("type") not in ("stdio", "streamable-http", "sse"):
        yield "transport is an object whose type is stdio, streamable-http or sse"
    yield from _each("environmentVariables", package, _named_input_problems)
