"""``mcp-actors serve --workers N``: a supervisor owns the listening sockets, workers accept from them.

`serving` opens the sockets, `supervisor` starts the workers, starts them again and replaces them, `worker` is the
worker's own side with the messages between the two, and `view` is the live view of all of them.
"""

from __future__ import annotations
