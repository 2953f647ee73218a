"""The rules for the head of a request that llhttp does not check: methods, hosts, targets, header names."""

from __future__ import annotations

import re

__all__ = ["ABSOLUTE_FORM", "HOST", "LOWER_NAMES", "METHODS", "METHOD_AND_BLANK", "SINGLE_VALUED"]

# The methods that a resource may answer. This server is neither a proxy nor a WebDAV server, so it has no others.
METHODS = {name.encode(): name for name in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")}
METHOD_AND_BLANK = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,32} ")
# RFC 3986 section 3.2.2 and the port; no user information, which RFC 9110 section 4.2.4 forbids in requests.
HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+(?:%25[\w.~-]+)?\]|[\w.~!$&'()*+,;=%-]*)(?::[0-9]{0,5})?", re.ASCII)
ABSOLUTE_FORM = re.compile(r"https?://([^/?#]*)(/[^?#]*)?(?:\?([^#]*))?", re.IGNORECASE)

_USUAL_NAMES = """
    Accept Accept-Encoding Accept-Language Authorization Cache-Control Connection Content-Encoding Content-Length
    Content-Type Cookie Expect Forwarded Host Keep-Alive Last-Event-ID MCP-Protocol-Version Mcp-Method Mcp-Name
    Mcp-Session-Id Mcp-Protocol-Version Origin Pragma Referer Sec-Fetch-Dest Sec-Fetch-Mode Sec-Fetch-Site
    Sec-WebSocket-Extensions Sec-WebSocket-Key Sec-WebSocket-Protocol Sec-WebSocket-Version
    Transfer-Encoding Upgrade User-Agent X-Forwarded-For X-Forwarded-Host X-Forwarded-Proto
"""
# Names need no decoding if they have one of the spellings that clients use.
LOWER_NAMES = {
    spelling.encode(): name.lower() for name in _USUAL_NAMES.split() for spelling in (name, name.lower())
}
# Headers of which a second line is an attempt to be understood in two ways (RFC 9110 section 5.3).
_SINGLE_NAMES = """
    authorization content-length content-location content-type date expect from host if-modified-since
    if-unmodified-since last-event-id max-forwards origin proxy-authorization range referer transfer-encoding
    user-agent
"""
SINGLE_VALUED = frozenset(_SINGLE_NAMES.split())
