"""The pages that a person sees: the consent, and what is said where there is none. They have no scripts.

Everything that a client says of itself is escaped, and shown as its own words. `HEADERS` are those of every page.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from html import escape
from urllib.parse import urlsplit

from mcp_actors.examples.issuer.clients import is_loopback_uri
from mcp_actors.examples.issuer.issuer import ConsentRequest, Issuer

__all__ = ["HEADERS", "consent_page", "error_page", "policy", "start_page"]

_STYLE = """
:root { color-scheme: light dark; --edge: #8888; --loud: #b3261e; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 42rem; padding: 0 1rem 2rem; }
header { border: 2px solid var(--loud); border-radius: .5rem; margin: 1rem 0; padding: .5rem 1rem; }
h1 { font-size: 1.4rem; line-height: 1.25; overflow-wrap: anywhere; }
dl { display: grid; gap: .25rem 1rem; grid-template-columns: max-content 1fr; }
dt { font-weight: 600; } dd { margin: 0; overflow-wrap: anywhere; }
button { border: 1px solid var(--edge); border-radius: .5rem; display: block; font: inherit; margin: .5rem 0;
  padding: .6rem 1rem; text-align: left; width: 100%; cursor: pointer; }
button small { display: block; opacity: .75; } button:disabled { cursor: default; opacity: .5; }
"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()

HEADERS = (
    ("cache-control", "no-store"),
    ("x-frame-options", "DENY"),
    ("x-content-type-options", "nosniff"),
    # With no-referrer a browser would send the answer of the form with "Origin: null".
    ("referrer-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
)


def policy(redirect_uri: str | None = None) -> tuple[str, str]:
    """Returns the content security policy of a page.

    Args:
        redirect_uri: Where the page's form leads in the end, which browsers check as well; ``None`` without a form.
    """
    action = "'none'" if redirect_uri is None else f"'self' {_source_of(redirect_uri)}"
    return (
        "content-security-policy",
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; form-action {action}; "
        "frame-ancestors 'none'; base-uri 'none'",
    )


def _source_of(uri: str) -> str:
    parts = urlsplit(uri)
    # A program's own scheme has no host, and no policy can name an IPv6 address: then it is the scheme alone.
    if parts.scheme not in ("http", "https") or ":" in (parts.hostname or ":"):
        return f"{parts.scheme}:"
    return f"{parts.scheme}://{parts.netloc}"


def consent_page(consent: ConsentRequest) -> str:
    """Returns the page on which a person chooses a name, or refuses."""
    client = consent.client
    redirect = urlsplit(consent.redirect_uri)
    if is_loopback_uri(consent.redirect_uri):
        leads_to = f"{redirect.netloc}, a program on this machine; any program here may use this name"
    else:
        leads_to = f"{redirect.scheme}://{redirect.netloc}"
    known = {
        "registered": "It registered itself, and its name is not checked.",
        "document": f"Its document is at {client.client_id}",
        "configured": "It is named on the command line.",
    }[client.origin]
    facts = [
        ("Program", f"{client.name} (as it calls itself)"),
        ("Known by", known),
        ("Wants to use", consent.resource),
        ("Asks for", " ".join(consent.scopes) or "all that you have"),
        ("Answer goes to", leads_to),
    ]
    buttons = [_button(name, scopes) for name, scopes in consent.choices.items()]
    return _page(
        f"Let {client.name} in?",
        [
            _facts(facts),
            '<form method="post" action="/consent">',
            f'<input type="hidden" name="ticket" value="{escape(consent.ticket)}">',
            *buttons,
            '<button name="deny" value="yes" id="deny">Refuse</button>',
            "</form>",
        ],
    )


def _button(name: str, scopes: tuple[str, ...]) -> str:
    able = f"gives {' '.join(scopes)}" if scopes else "has none of these scopes"
    disabled = "" if scopes else " disabled"
    return (
        f'<button name="user" value="{escape(name)}" id="user-{escape(name)}"{disabled}>'
        f"Continue as {escape(name)}<small>{escape(able)}</small></button>"
    )


def error_page(description: str) -> str:
    """Returns the page for a request that leads nowhere."""
    return _page(
        "This login cannot go on", [f"<p>{escape(description)}.</p>", "<p>Go back to the program.</p>"]
    )


def start_page(issuer: Issuer) -> str:
    """Returns the page at the root: what this is, and who is here."""
    users = [(name, " ".join(scopes)) for name, scopes in issuer.users.items()]
    machines = [(each.name, " ".join(each.scopes)) for each in issuer.machines]
    return _page(
        "An example authorization server",
        [
            f"<p>MCP servers on this machine can name <b>{escape(issuer.url)}</b> as their issuer.</p>",
            "<h2>Persons, and what they may grant</h2>",
            _facts(users),
            "<h2>Programs with access of their own</h2>",
            _facts(machines) if machines else "<p>None; <code>--client NAME=SCOPES</code> adds one.</p>",
        ],
    )


def _facts(facts: Iterable[tuple[str, str]]) -> str:
    rows = (f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts)
    return f"<dl>{''.join(rows)}</dl>"


def _page(title: str, body: Iterable[str]) -> str:
    lines = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
        "<header><b>For this machine only.</b> This example authorization server asks for no password: every visitor "
        "may choose any name. Never protect with it what others can reach.</header>",
        f"<h1>{escape(title)}</h1>",
        *body,
        "</body></html>",
    ]
    return "\n".join(lines)
