"""The server that the official conformance suite is run against: a ``Server`` named ``server``.

The fixtures live in the package, ``mcp_actors.examples.everything``: whoever installed it has them too. Skills are not
among them, because they need a library for YAML.
"""

from __future__ import annotations

from mcp_actors.examples.everything import server

__all__ = ["server"]

_PDF = """\
---
name: pdf-processing
description: Extract, fill, and assemble PDF documents
license: Apache-2.0
metadata:
  version: "2.1.0"
---

Choose the template in `templates/` that fits, and read `references/FORMS.md` before you fill in a form.
"""
_REVIEW = """\
---
name: code-review
description: Review a change for correctness and style
---

Read the whole change before you write a word.
"""
server.add_skill(
    {
        "SKILL.md": _PDF,
        "references/FORMS.md": "A form has fields.\n",
        "templates/invoice.md": "Invoice\n",
        "templates/regional/eu-invoice.md": "Invoice, with VAT\n",
        "assets/logo.png": b"\x89PNG\r\n\x1a\n",
    }
)
server.add_skill({"SKILL.md": _REVIEW, "references/STYLE.md": "Short lines.\n"}, folder="acme/engineering")
