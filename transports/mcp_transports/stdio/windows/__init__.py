"""Processes and pipes on Windows. Nothing here is imported elsewhere.

The standard streams of a server are pipes on which calls block: threads make these calls (`blocking_streams.py`). The
pipes to a child are Trio's, with overlapped calls (`pipes.py`). A job object takes the place of a process group
(`jobs.py`). All calls of the system go through `kernel32.py`, so that a test can put another one there.
"""

from __future__ import annotations
