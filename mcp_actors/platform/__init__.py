"""Differences between operating systems that several rooms need to know.

Those that concern one binding are in the binding, as in `mcp_transports.stdio.windows`.
"""

from __future__ import annotations
