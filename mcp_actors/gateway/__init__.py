"""A gateway: many servers as one; also groups of clients, and the configurations that name their servers.

A request goes down through the files of the gateway, and what an upstream reports goes up:

==========================================================  ====================================================
`gateway`, `live`                                           the class, and all upstreams of one ``serve``
`forwarding`, `forwarded_tasks`, `results`, `call_options`  a request to an upstream and back, over one `Lease`
`routes`, `lists`, `listing`, `names`,                      what there is, and which upstream has it
`upstream_subscriptions`
`upstream`, `callbacks`, `connections`, `breaker`,          one server: its leases, its connections and what it
`upstream_settings`                                         asks the client, its health and its settings
`held_calls`                                                calls that go on while their client is asked
==========================================================  ====================================================

Beside the gateway, `client_group` has the clients of many servers in a program, and `server_entries` and
`server_entry` read the configurations that both are made from.
"""

from __future__ import annotations

import importlib

__all__ = [
    "Gateway",
    "SessionPolicy",
    "Upstream",
    "UpstreamStatistics",
    "UpstreamTarget",
    "bridge_to",
    "configured_gateway",
    "upstreams_of",
]

# Groups of clients and readers of configurations need no gateway: each name is loaded when it is first asked for.
# ``__init__.pyi`` tells type checkers what there is.
_LATE = {
    "Gateway": "gateway",
    "SessionPolicy": "upstream_settings",
    "Upstream": "upstream_settings",
    "UpstreamStatistics": "gateway",
    "UpstreamTarget": "upstream_settings",
    "bridge_to": "gateway",
    "configured_gateway": "gateway",
    "upstreams_of": "gateway",
}


def __getattr__(name: str) -> object:
    """Loads a name of the table above when it is first asked for.

    Raises:
        AttributeError: The name does not exist.
    """
    module = _LATE.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE})
