"""The table of every kind of task: who owns it, what its crash costs and who learns of it.

`mcp_actors.supervision.containment` starts tasks by these rows, and tests hold the engine and the bindings to them.
"""

from __future__ import annotations

from mcp_actors.supervision.containment import TaskKind

__all__ = ["TASKS"]

# -- the engine ----------------------------------------------------------------------------------------------
TRANSPORT = TaskKind("transport", "server", "server", "the caller of serve(): it cannot listen any more")
DRAIN = TaskKind("drain", "server", "nothing", "no caller: the server can still be stopped", restarted=True)
STOP_PART = TaskKind(
    "part in the stop", "server", "nothing", "no caller: the server stops without that part of a transport"
)
WATCHED_LOOP = TaskKind(
    "watched loop",
    "server",
    "nothing",
    "no caller: the watchdog takes the loop for blocked",
    restarted=True,
)
COMPANION = TaskKind(
    "companion", "server", "member", "those who look at the server through it; the server goes on"
)
SIGNALS = TaskKind("signals", "server", "nothing", "no caller", restarted=True)
MOUNT = TaskKind(
    "mount",
    "server",
    "member",
    "the caller of serve() at the start; later the callers of what is mounted: it is not there",
)
MOUNT_END = TaskKind(
    "end of a mount", "server", "nothing", "no caller: its lifespan is left at the end of the server"
)
DEPENDENCY = TaskKind(
    "dependency", "server or call", "member", "the callers that wait for it; later no caller: it is made anew"
)
DEPENDENCY_END = TaskKind(
    "end of dependencies", "server", "nothing", "no caller: they are closed at the end of the server"
)
# It is a sibling of the session's task, and so is a WebSocket's: no nursery is made for what few connections need.
CONNECTION_WRITER = TaskKind(
    "link", "owner of the connection", "connection", "the peer: its connection closes"
)
# A session has no task of its own: it runs in that of its connection, or of the transport that has only one.
SESSION = TaskKind("session", "connection", "connection", "the peer: its connection closes")
CALL_WORKER = TaskKind("call", "session or server", "call", "the peer: -32603; the session goes on")
SESSION_CLOCK = TaskKind(
    "clock", "session", "nothing", "no caller: the calls keep their deadlines", restarted=True
)
BEATS = TaskKind(
    "beats", "server", "member", "no caller: the call that failed goes on without them", restarted=True
)
CHANGE_DELIVERY = TaskKind(
    "deliver changes", "session", "nothing", "no caller: the next change starts it anew"
)
EXCHANGE = TaskKind("batch", "server", "call", "the peer: -32603 for each request that is left")
CLIENT_LIFE = TaskKind(
    "client life",
    "client block or pool",
    "connection",
    "the caller: ConnectionLost; the task that closes the client",
)
GROUP_WORK = TaskKind(
    "group work",
    "client group",
    "member",
    "the task that opened the group, or the caller: its outcome is the crash",
)
CLIENT_CONNECTION = TaskKind("client connection", "client", "connection", "the caller: ConnectionLost")
CLIENT_HANDSHAKE = TaskKind(
    "handshake request", "client connection", "connection", "the caller of connect: ConnectFailed"
)
CLIENT_SUPERVISOR = TaskKind("client supervisor", "client", "session", "the caller: ConnectionLost")
CLIENT_PINGS = TaskKind("client pings", "client connection", "nothing", "no caller", restarted=True)
CLIENT_NOTIFICATIONS = TaskKind("client notifications", "client", "nothing", "no caller", restarted=True)
CLIENT_SUBSCRIPTION = TaskKind("client subscription", "client", "member", "the listener: SubscriptionLost")
CLIENT_READ = TaskKind("shared request", "client", "call", "all callers that wait for the answer")
CLIENT_TASK = TaskKind("client task", "client", "call", "the server that looks at the task: it has failed")
IN_PROCESS_SERVER = TaskKind(
    "in-process server",
    "client",
    "connection",
    "the caller: ConnectionLost; the client's block raises the crash where it ends",
)

# -- programs without Trio -----------------------------------------------------------------------------------
BRIDGED_CALL = TaskKind(
    "bridged call", "engine thread", "call", "the caller, in the program's loop or thread"
)
# A step has no task of its own: it runs between two turns of the engine's loop.
BRIDGED_STEP = TaskKind("bridged step", "engine thread", "call", "no caller")
ASYNCIO_REQUEST = TaskKind(
    "asyncio request", "call", "call", "the function that waits for it in its asyncio loop"
)
ASYNCIO_LIFESPAN = TaskKind("asyncio lifespan", "server", "server", "the caller of serve()")
LOOP_WATCH = TaskKind(
    "watch loops", "engine thread", "nothing", "no caller: a closed loop is noticed later", restarted=True
)
LOOP_END = TaskKind("close what a loop left", "engine thread", "nothing", "no caller")
HELD_BLOCK = TaskKind("held block", "engine thread", "member", "the task that leaves the block")
BRIDGED_FUNCTION = TaskKind(
    "bridged function", "a Trio loop of the program", "call", "the task of the engine that called it"
)

ASGI_WATCH = TaskKind("watch ASGI client", "application", "call", "the client: its answer is cut off")

# -- tasks of the protocol, which outlive their calls --------------------------------------------------------
TASK = TaskKind("task", "tasks of a server", "call", "those who look at the task: it has failed")
TASK_STATUS = TaskKind("status messages", "task", "nothing", "no caller: the task goes on without them")
TASK_END = TaskKind(
    "end task", "tasks of a server", "nothing", "no caller: the task is kept until its time is up"
)
TASK_WATCH = TaskKind("watch tasks", "tasks of a server", "nothing", "no caller", restarted=True)
TASK_SWEEP = TaskKind("find abandoned tasks", "tasks of a server", "nothing", "no caller", restarted=True)

# -- calls with keys, which outlive the connections that brought them ----------------------------------------
KEYED_CALL = TaskKind(
    "keyed call", "idempotency of a server", "call", "the callers with this key: OutcomeUnknown"
)
TURN_LEASE = TaskKind(
    "keep a turn", "call", "nothing", "no caller: another node takes the turn when its lease is over"
)

# -- functions in processes of their own ---------------------------------------------------------------------
ISOLATED_PROCESS = TaskKind(
    "isolated process",
    "server",
    "call",
    "the caller whose function ran in the process, which is replaced",
    restarted=True,
)
ISOLATED_REQUEST = TaskKind(
    "isolated request", "call", "call", "the function in its process, which waits for its answer"
)

SHARED_STATE = TaskKind(
    "shared state", "server", "member", "users of the state from then on: SharedStateUnavailable"
)

# -- shared state in SQLite ----------------------------------------------------------------------------------
SQLITE_WORKER = TaskKind(
    "SQLite worker",
    "server",
    "call",
    "the task that waits for the file: SharedStateUnavailable",
    restarted=True,
)
SQLITE_LEASE = TaskKind(
    "SQLite lease", "server", "nothing", "no caller: other nodes wait for the lease", restarted=True
)

# -- shared state on a server --------------------------------------------------------------------------------
STORE_UPKEEP = TaskKind(
    "store upkeep",
    "server",
    "member",
    "users of the state meanwhile: SharedStateUnavailable",
    restarted=True,
)
STORE_CONNECTION = TaskKind(
    "store connection",
    "store upkeep",
    "connection",
    "the task that waits for an answer: SharedStateUnavailable; another connection is made",
)

# -- sockets, HTTP and WebSocket, server side ----------------------------------------------------------------
POLLER = TaskKind(
    "poller", "listener", "member", "the member that failed: its connection closes", restarted=True
)
SOCKET_WAIT = TaskKind("socket wait", "poller", "member", "the member that failed: its connection closes")
TICKER = TaskKind(
    "ticker", "listener", "member", "the member that failed: its connection closes", restarted=True
)
ACCEPT = TaskKind("accept", "listener", "nothing", "no caller", restarted=True)
LISTENER_END = TaskKind(
    "end the accepting", "listener", "nothing", "no caller: it ends later", restarted=True
)
SOCKET_CONNECTION = TaskKind("connection", "listener", "connection", "the peer: its connection closes")
HTTP_FLUSH = TaskKind("flush", "connection", "connection", "the peer: its connection closes")
HTTP_RESPONSE = TaskKind("response", "connection", "call", "the peer: 500, or its stream is cut off")
HTTP_SERVE = TaskKind("serve pipelined", "connection", "connection", "the peer: its connection closes")
ROUTE_LIFESPAN = TaskKind(
    "route lifespan", "transport", "nothing", "no caller: its requests are served on, without a shutdown"
)
EVENT_STREAMS = TaskKind(
    "keep event streams alive", "transport", "member", "the stream that failed", restarted=True
)
SESSION_EXPIRY = TaskKind("expire sessions", "transport", "member", "the session that failed", restarted=True)
STOP_STREAMS = TaskKind(
    "stop event streams", "transport", "nothing", "no caller: the server can still be stopped", restarted=True
)
FORWARDED_REQUESTS = TaskKind(
    "hold forwarded requests", "listener", "transport", "the other nodes: what they forwarded is lost"
)
FORWARDED_ANSWER = TaskKind(
    "answer forwarded request", "listener", "call", "the other node: the answer is cut off there"
)
FORWARDING_MESSAGES = TaskKind(
    "forwarding",
    "listener",
    "nothing",
    "no caller: what is lost is noticed",
    restarted=True,
)
FORWARDING_WATCH = TaskKind(
    "watch forwarded requests", "listener", "nothing", "no caller: the requests go on", restarted=True
)
MEMORY_CONNECTION = TaskKind(
    "memory connection", "transport", "connection", "the client: its connection breaks"
)
WEBSOCKET_CONTROL = TaskKind(
    "websocket control", "owner of the connection", "connection", "the peer: its connection closes"
)

# -- clients' bindings ---------------------------------------------------------------------------------------
HTTP_CHANNEL = TaskKind("HTTP channel", "client connection", "connection", "the caller: ConnectionLost")
HTTP_POST = TaskKind("POST", "HTTP channel", "call", "the caller: ConnectionLost")
HTTP_MESSAGE = TaskKind("message", "HTTP channel", "nothing", "no caller: a message has no answer")
HTTP_STREAM = TaskKind("GET", "HTTP channel", "connection", "the caller: ConnectionLost")
HTTP_SESSION_END = TaskKind("end session", "HTTP channel", "connection", "the caller: SessionExpired")
AUTHORIZATION = TaskKind(
    "authorization",
    "HTTP or WebSocket channel",
    "nothing",
    "the task that waits for access: AuthorizationError",
)
LOGIN_LISTENER = TaskKind("login listener", "login", "call", "the login: LoginFailed")
CHILD_WATCH = TaskKind("child process", "client connection", "connection", "the caller: ConnectionLost")
CHILD_OUTPUT = TaskKind("child output", "child process", "nothing", "no caller", restarted=True)

# -- the live view -------------------------------------------------------------------------------------------
ADMIN_FEED = TaskKind(
    "admin snapshots", "companion", "nothing", "no caller: the next snapshot comes later", restarted=True
)
ADMIN_NODE = TaskKind(
    "admin answers",
    "companion",
    "nothing",
    "the other nodes: this one is silent for a moment",
    restarted=True,
)
ADMIN_HISTORY = TaskKind(
    "admin history", "companion", "nothing", "no caller: ten seconds of history are missing", restarted=True
)
ADMIN_ACTION = TaskKind("admin action", "companion", "call", "the request for it: 500")
INSPECTION_REQUEST = TaskKind(
    "inspecting request", "inspection", "nothing", "no caller: the others are measured"
)

# -- gateways -------------------------------------------------------------------------------------------------
UPSTREAM_CONNECT = TaskKind(
    "connect upstream", "gateway", "member", "the task that waits for the connection: UpstreamUnavailable"
)

UPSTREAM_CLOSE = TaskKind("close upstream connection", "gateway", "nothing", "no caller")
UPSTREAM_PING = TaskKind(
    "ask whether an upstream is alive", "gateway", "nothing", "no caller: it counts as there"
)
UPSTREAM_KEEP = TaskKind(
    "keep upstream", "gateway", "nothing", "no caller: it is connected to when it is needed", restarted=True
)
UPSTREAM_SWEEP = TaskKind(
    "close idle connections", "gateway", "nothing", "no caller: they are closed later", restarted=True
)

UPSTREAM_LIST = TaskKind(
    "read upstream list",
    "gateway",
    "member",
    "the task that waits for the list, which then is without the upstream",
)
UPSTREAM_WAIT = TaskKind(
    "wait for upstream list", "call", "member", "the call, whose list is without the upstream"
)
UPSTREAM_CHANGES = TaskKind(
    "report changes of upstreams", "gateway", "nothing", "no caller: they are reported later", restarted=True
)
UPSTREAM_SUBSCRIPTION = TaskKind(
    "upstream subscription", "gateway", "member", "the subscriber: UpstreamUnavailable"
)
UPSTREAM_LOG_LEVEL = TaskKind(
    "set log level", "connection of a gateway", "nothing", "no caller: the server logs as before"
)
HELD_CALL = TaskKind("held call", "gateway", "call", "the client: its call failed")

# -- mcp-actors serve --workers ------------------------------------------------------------------------------
WORKER_SLOT = TaskKind(
    "slot", "supervisor of workers", "nothing", "no caller: its worker goes on", restarted=True
)
WORKER_PROCESS = TaskKind(
    "worker process", "supervisor of workers", "member", "its slot, which starts another"
)
WORKER_PAGES = TaskKind(
    "pages for a worker", "worker process", "nothing", "the worker: its page of metrics fails"
)
WORKER_STORE = TaskKind(
    "state of workers",
    "worker process",
    "member",
    "the worker, which ends and is started again",
)
WORKER_SIGNALS = TaskKind("worker signals", "supervisor of workers", "nothing", "no caller", restarted=True)
WORKER_REPLACEMENT = TaskKind(
    "replacement", "supervisor of workers", "nothing", "no caller: the workers that are there go on"
)

# -- mcp-actors serve --reload -------------------------------------------------------------------------------
TURN = TaskKind(
    "block of a replaceable server", "server", "member", "no caller: the server goes on without what it holds"
)
REPLACED_END = TaskKind(
    "end replaced server", "server", "nothing", "no caller: its lifespan is left when the server ends"
)
REPLACEMENT = TaskKind(
    "replace server", "server", "nothing", "no caller: the server that is there serves on", restarted=True
)
RELOAD = TaskKind("reload", "replace server", "nothing", "no caller: the server that is there serves on")
RELOAD_WATCH = TaskKind("watch files", "replace server", "nothing", "no caller", restarted=True)

TASKS: tuple[TaskKind, ...] = tuple(each for each in list(globals().values()) if isinstance(each, TaskKind))
"""Every kind of task there is; the tests hold the engine and the bindings to it."""
