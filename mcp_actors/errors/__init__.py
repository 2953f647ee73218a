"""Every exception that mcp-actors raises.

::

    McpError
    ├── ProtocolError             a rule of the protocol was broken
    │   ├── LocalProtocolError    by the program that uses this package; nothing was sent
    │   │   ├── OnceConflict      what a call does once does not fit to what it has done before
    │   │   └── InboxUnavailable  the server takes no messages for calls that run
    │   └── RemoteProtocolError   by the peer
    │       ├── MalformedMessage  with bytes that are not JSON-RPC
    │       └── Unavailable       or a proxy before it: it cannot serve us at present
    ├── RpcError                  an error response, sent or received: code, message, data
    │   ├── MethodNotFound        -32601
    │   ├── UnsupportedVersion    -32022
    │   ├── MissingCapability     -32021
    │   ├── HeaderMismatch        -32020
    │   ├── ResourceNotFound      -32002 or -32602, as the revision has it
    │   ├── TaskNotFound          -32602, a task is unknown, has expired, or is somebody else's
    │   ├── Overloaded            429, a limit on concurrent requests is reached
    │   ├── NotAllowed            403, `auth=` of a tool, prompt or resource refuses
    │   ├── DefinitionChanged     403, a tool or prompt is not what was approved of it
    │   ├── OutcomeUnknown        409, what may be done once was begun, and its outcome is not known
    │   ├── DeadlineExceeded      504, the caller's time is over: refused unbegun, or cancelled
    │   ├── TurnLost              409, the turn of a call was lost, and its function was cancelled
    │   ├── CallEnded             410, a message was sent to a call that has ended
    │   ├── InsufficientScope     403, the caller's access token lacks a scope
    │   ├── SharedStateUnavailable  503, what several processes share cannot be reached
    │   ├── ServerStopping        503, the server stops: not begun, or begun and cancelled
    │   ├── UpstreamUnavailable   502, a server behind a gateway cannot be reached
    │   ├── UpstreamTimeout       504, it has not answered in time
    │   └── UpstreamMisbehaved    520, its answer is not of the protocol
    ├── ToolError                 raised by a tool; the model gets its text, marked ``isError``
    ├── ToolFailed                a tool of the server failed, and the caller wanted its value
    ├── UnexpectedResult          a tool's value is not of the class that the caller named
    ├── AppRefused                the page of a tool is not one that a host may show
    ├── SkillRefused              a skill, or a file of it, is not what its server has listed
    ├── WrongArguments            arguments do not fit what the server has listed; nothing was sent
    ├── OnceFailed                what a call has done once has failed in an earlier run
    ├── InputRequired             the server asks for input, and automatic answers are switched off
    ├── TaskCancelled             a task whose result is waited for was cancelled by somebody else
    ├── CallTimeout               a call ran out of its idle or its total time
    ├── CallCancelled             in a worker thread of a server: the result is not needed any more
    ├── ConnectFailed             a connection could not be made
    │   └── AuthorizationError    because access could not be had
    │       ├── LoginRequired             a person must log in, and cannot be asked
    │       ├── LoginFailed               the login was refused, took too long or proves nothing
    │       ├── AuthorizationFailed       the server refuses even a fresh token
    │       ├── DiscoveryFailed           there is no usable metadata
    │       ├── MetadataMismatch          a document speaks for somebody else
    │       ├── UrlRefused                a URL from the network must not be used
    │       ├── RegistrationFailed        there is no client id
    │       ├── TokenRefused              the authorization server issues no token
    │       ├── AuthorizationUnavailable  the authorization server is out of order
    │       └── TokenStoreFailed          the store of tokens cannot be used
    ├── ConnectionLost            the connection ended during a call
    ├── SessionExpired            the server has ended or forgotten the session
    ├── SubscriptionLost          a subscription ended without the server's closing result
    ├── ConfigurationError        a configuration of servers cannot be used
    │   ├── MissingVariable           it names an environment variable that is not set
    │   └── ApiDocumentError          an OpenAPI document cannot be read
    ├── EngineStopped             the program ends, or has forked: the engine of programs without Trio is gone
    ├── LoopClosed                the loop is closed in which a function of the program was to be called
    └── TransportNotFound         no installed binding has that URL scheme

Exception groups that arise inside this package never reach the program, and exceptions of the program's own functions
are never wrapped.
"""

from __future__ import annotations

from mcp_actors.errors.connection import (
    AuthorizationError,
    AuthorizationFailed,
    AuthorizationUnavailable,
    CallCancelled,
    CallTimeout,
    ConnectFailed,
    ConnectionLost,
    DiscoveryFailed,
    EngineStopped,
    InputRequired,
    LoginFailed,
    LoginRequired,
    LoopClosed,
    MetadataMismatch,
    NotApproved,
    RegistrationFailed,
    SessionExpired,
    SubscriptionLost,
    TaskCancelled,
    TokenRefused,
    TokenStoreFailed,
    ToolError,
    ToolFailed,
    TransportNotFound,
    UnexpectedResult,
    UrlRefused,
    WrongArguments,
)
from mcp_actors.errors.protocol import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    URL_ELICITATION_REQUIRED,
    ApiDocumentError,
    AppRefused,
    CallEnded,
    ClosedElsewhere,
    ConfigurationError,
    DeadlineExceeded,
    DefinitionChanged,
    HeaderMismatch,
    InboxUnavailable,
    InsufficientScope,
    KeyConflict,
    LocalProtocolError,
    MalformedMessage,
    McpError,
    MethodNotFound,
    MissingCapability,
    MissingVariable,
    NotAllowed,
    OnceConflict,
    OnceFailed,
    OutcomeUnknown,
    Overloaded,
    ProtocolError,
    RemoteProtocolError,
    ResourceNotFound,
    RpcError,
    ServerStopping,
    SharedStateUnavailable,
    SkillRefused,
    TaskNotFound,
    TurnLost,
    Unavailable,
    UnsupportedVersion,
    UpstreamMisbehaved,
    UpstreamTimeout,
    UpstreamUnavailable,
    invalid_params,
)

__all__ = [
    "INTERNAL_ERROR",
    "INVALID_PARAMS",
    "INVALID_REQUEST",
    "METHOD_NOT_FOUND",
    "PARSE_ERROR",
    "URL_ELICITATION_REQUIRED",
    "ApiDocumentError",
    "AppRefused",
    "AuthorizationError",
    "AuthorizationFailed",
    "AuthorizationUnavailable",
    "CallCancelled",
    "CallEnded",
    "CallTimeout",
    "ClosedElsewhere",
    "ConfigurationError",
    "ConnectFailed",
    "ConnectionLost",
    "DeadlineExceeded",
    "DefinitionChanged",
    "DiscoveryFailed",
    "EngineStopped",
    "HeaderMismatch",
    "InboxUnavailable",
    "InputRequired",
    "InsufficientScope",
    "KeyConflict",
    "LocalProtocolError",
    "LoginFailed",
    "LoginRequired",
    "LoopClosed",
    "MalformedMessage",
    "McpError",
    "MetadataMismatch",
    "MethodNotFound",
    "MissingCapability",
    "MissingVariable",
    "NotAllowed",
    "NotApproved",
    "OnceConflict",
    "OnceFailed",
    "OutcomeUnknown",
    "Overloaded",
    "ProtocolError",
    "RegistrationFailed",
    "RemoteProtocolError",
    "ResourceNotFound",
    "RpcError",
    "ServerStopping",
    "SessionExpired",
    "SharedStateUnavailable",
    "SkillRefused",
    "SubscriptionLost",
    "TaskCancelled",
    "TaskNotFound",
    "TokenRefused",
    "TokenStoreFailed",
    "ToolError",
    "ToolFailed",
    "TransportNotFound",
    "TurnLost",
    "Unavailable",
    "UnexpectedResult",
    "UnsupportedVersion",
    "UpstreamMisbehaved",
    "UpstreamTimeout",
    "UpstreamUnavailable",
    "UrlRefused",
    "WrongArguments",
    "invalid_params",
]
