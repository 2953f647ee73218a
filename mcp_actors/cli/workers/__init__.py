"""``mcp-actors serve --workers N``: a supervisor owns the listening sockets, workers accept from them.

`supervisor.py` starts the workers, starts them again and replaces them; `process.py` is one worker as its supervisor
sees it; `worker.py` is the worker's own side; `messages.py` is what the two say to each other.
"""

from __future__ import annotations
