"""The page of the live view: one file without outside resources, under a policy that allows nothing else."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from importlib.resources import files

from mcp_transports.http.h1.response import Response
from mcp_transports.http.server.error_responses import Header

__all__ = ["Page"]

_PART = r"<{0}>(.*?)</{0}>"


class Page:
    """The page, and the policy that allows its own script and style by their hashes, and talks to its own server."""

    def __init__(self) -> None:
        text = files("mcp_transports.admin").joinpath("page.html").read_text("utf-8")
        self._body = text.encode()
        script, style = (_hash(text, part) for part in ("script", "style"))
        self.policy = (
            f"default-src 'none'; script-src '{script}'; style-src '{style}'; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
        )
        """The value of ``Content-Security-Policy``."""

    def answer(self, response: Response, headers: Sequence[Header]) -> None:
        """Answers with the page."""
        response.answer(
            200,
            self._body,
            content_type="text/html; charset=utf-8",
            headers=(*headers, ("content-security-policy", self.policy), ("x-frame-options", "DENY")),
        )


def _hash(text: str, part: str) -> str:
    (found,) = re.findall(_PART.format(part), text, re.DOTALL)
    return "sha256-" + base64.b64encode(hashlib.sha256(found.encode()).digest()).decode()
