"""The descriptors of this process: how many it may open, and how many are kept for what must not fail.

POSIX gives each new descriptor the lowest number that is free (``open(2)``, "lowest-numbered"), so the number of the
youngest one tells how many there are, whoever opened them. Where there is no such limit, on Windows, there is always
room.
"""

from __future__ import annotations

import os
import sys

if sys.platform != "win32":
    import resource

__all__ = ["leaves_room", "may_open", "raise_limit", "room_for_peers"]

# More than any of our bounds asks for. Programs that close every descriptor that they could have, as some do when they
# start, would take minutes under the limits of a thousand million that containers have.
_MOST = 65_536
# Kept from those who connect to this process, for upstreams, children, the log, stores and accepting.
_SHARE_KEPT_FROM_PEERS = 8  # one of so many
_LEAST_KEPT_FROM_PEERS = 48
# Kept from upstreams and children, too: an upstream over stdio has three pipes, a store some files.
_KEPT = 24


def raise_limit() -> None:
    """Lets this process, and the children that it starts, open as many descriptors as the system allows it.

    That is the hard limit, and at most 65,536. For programs that serve; a server that is embedded in another program
    leaves the limit to that.
    """
    if sys.platform != "win32":
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            except (OSError, ValueError):
                return  # macOS says "unlimited", and allows fewer: then it stays as it is


def room_for_peers() -> int:
    """Returns how many connections those who connect to this process may have, of all its descriptors."""
    limit = _limit()
    return limit if limit == sys.maxsize else max(1, limit - _kept_from_peers(limit))


def leaves_room(descriptor: int) -> bool:
    """Whether there is room for a connection of a peer.

    Args:
        descriptor: The connection's.
    """
    return descriptor < room_for_peers()


def may_open() -> bool:
    """Whether there is room for a further upstream or child. It costs two system calls."""
    limit = _limit()
    if limit == sys.maxsize:
        return True
    try:
        lowest = os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return False
    os.close(lowest)
    return lowest < limit - min(_KEPT, limit // _SHARE_KEPT_FROM_PEERS)


def _kept_from_peers(limit: int) -> int:
    return min(max(_LEAST_KEPT_FROM_PEERS, limit // _SHARE_KEPT_FROM_PEERS), limit // 2)


def _limit() -> int:
    if sys.platform != "win32":
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            return soft
    return sys.maxsize
