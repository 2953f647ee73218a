"""Labels with a bound: names that peers and models make up must not become time series without end."""

from __future__ import annotations

from functools import lru_cache

from mcp_actors.abc.telemetry import ObservedRequest

__all__ = ["MOST_NAMES", "OTHER", "TARGETED", "Names", "network_of", "shown"]

# Stands for every name that is not told apart.
OTHER = "other"
# Names of the program's own requests that are told apart: those of what servers have, of whom a client has a few.
MOST_NAMES = 200
# Characters of a name that is told apart.
_LONGEST = 128
# The methods whose target is a name, of which a server has few; a URI is one of very many.
TARGETED = {"tools/call": "gen_ai.tool.name", "prompts/get": "gen_ai.prompt.name"}
# The beginnings of what the other end is called, with the transport that they mean.
_TRANSPORTS = (
    ("stdio", "pipe"),
    ("memory:", "pipe"),
    ("unix:", "unix"),
    ("http+unix:", "unix"),
)


class Names:
    """The names that may become labels."""

    def __init__(self, most: int = MOST_NAMES) -> None:
        self._most = most
        self._known: set[str] = set()

    def label_of(self, request: ObservedRequest, outbound: bool = False) -> str | None:
        """Returns the label for the target of a request, ``None`` if its method has none.

        Args:
            outbound: Whether this side sends it. Its name was made up by this program then, or by a model that it asks,
                so the first ones are told apart. One that a peer sends has to be registered here.
        """
        target = request.target
        if target is None or request.method not in TARGETED:
            return None
        return self.bounded(target) if outbound else target if request.is_registered else OTHER

    def bounded(self, name: str) -> str:
        """Returns ``name`` while there are not too many, and `OTHER` for all that come later.

        One that is too long, or has a lone surrogate, which no format of metrics can carry, is `OTHER` as well.
        """
        if name not in self._known:
            if len(self._known) >= self._most or len(name) > _LONGEST or shown(name) != name:
                return OTHER
            self._known.add(name)
        return name


def shown(text: str) -> str:
    """Returns a text that can be encoded as UTF-8: lone surrogates are question marks."""
    return text.encode(errors="replace").decode()


@lru_cache(maxsize=2048)
def network_of(peer: str) -> str:
    """Returns the transport by which the other end is reached, as ``network.transport`` has it; asked for each call."""
    for beginning, transport in _TRANSPORTS:
        if peer.startswith(beginning):
            return transport
    return "tcp"
