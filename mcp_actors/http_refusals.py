"""A count of the HTTP requests that listeners of this process have refused before there was a call.

Whoever tries tokens, or calls a server by a name that it does not have, is no caller yet: no other number and no line
of the log at a usual level tells of it.
"""

from __future__ import annotations

from collections import Counter

__all__ = ["http_refusals"]

http_refusals: Counter[int] = Counter()
"""Refusals by status. There are at most 200 of them, because a refusal has a status between 400 and 599."""
