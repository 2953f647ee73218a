"""Extensions of the protocol (SEP-2133), which an application writes or takes from others.

By default none is on. A `ServerExtension` is given to ``Server(extensions=[…])``, a `ClientExtension` to
``Client(extensions=[…])``, and is in use where both sides declare it. ``docs/how-to/extensions.md`` is the guide.
"""

from __future__ import annotations

from mcp_actors._client.client_extension import AnsweredCall, AskedRequest, ClientExtension
from mcp_actors._server.approval_pages import ApprovalPages
from mcp_actors._server.context import holder_of
from mcp_actors._server.etags import ETAG, ETAGS, UNCHANGED, ETags
from mcp_actors._server.idempotency import IDEMPOTENCY, KEY, Idempotency
from mcp_actors._server.inbox import Inbox
from mcp_actors._server.server_extension import (
    OperatedTasks,
    ServerExtension,
    Serving,
    SupportsInbox,
    SupportsKept,
    TaskStatistics,
    Voice,
    ask_client,
    check_answer,
    detached,
    outcome,
    progress_token_of,
    read_answer,
    remembered,
)

__all__ = [
    "ETAG",
    "ETAGS",
    "IDEMPOTENCY",
    "KEY",
    "UNCHANGED",
    "AnsweredCall",
    "ApprovalPages",
    "AskedRequest",
    "ClientExtension",
    "ETags",
    "Idempotency",
    "Inbox",
    "OperatedTasks",
    "ServerExtension",
    "Serving",
    "SupportsInbox",
    "SupportsKept",
    "TaskStatistics",
    "Voice",
    "ask_client",
    "check_answer",
    "detached",
    "holder_of",
    "outcome",
    "progress_token_of",
    "read_answer",
    "remembered",
]
