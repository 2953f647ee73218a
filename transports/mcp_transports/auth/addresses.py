"""The addresses of a host, and what kind of network each of them is in."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from socket import SOCK_STREAM
from typing import Literal

import trio

__all__ = ["Address", "AddressKind", "kind_of", "resolve"]

AddressKind = Literal["global", "private", "loopback", "link-local", "special"]
"""``private`` are the addresses of a site; ``special`` is all that no server has, such as multicast."""

Address = IPv4Address | IPv6Address

# Addresses of a host that are looked at; more are refused, so that the check of all of them stays bounded.
MAX_ADDRESSES = 32

_PRIVATE = tuple(
    map(ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"))
)
# RFC 6052 section 2.1: behind a NAT64 these lead to the IPv4 address of their last four bytes.
_NAT64 = ip_network("64:ff9b::/96")
# RFC 4291 section 2.4: every global unicast address that was ever given out is here.
_GLOBAL_UNICAST = ip_network("2000::/3")


def kind_of(address: Address) -> AddressKind:
    """Returns the kind of an address; an IPv6 address that stands for one of IPv4 is of the kind of that."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in _NAT64:
            inner = IPv4Address(int(address) & 0xFFFF_FFFF)
        if inner is not None:
            return kind_of(inner)
    if address.is_loopback:
        return "loopback"
    if address.is_link_local:
        return "link-local"
    if any(address in each for each in _PRIVATE):
        return "private"
    unicast = address in _GLOBAL_UNICAST if address.version == 6 else not address.is_multicast
    return "global" if unicast and address.is_global else "special"


async def resolve(host: str, port: int) -> list[Address]:
    """Returns the addresses of a host, in the order in which the system prefers them, at least one.

    Args:
        host: A name, or an address in any spelling that the system's resolver accepts: what it means is decided by
            the resolver alone, so that nothing else can read it in another way.
        port: Any port.

    Raises:
        OSError: The host has no address, or too many.
    """
    try:
        found = await trio.socket.getaddrinfo(host, port, type=SOCK_STREAM)
    except UnicodeError as error:  # a name that cannot be any host's
        raise OSError("no host can have that name") from error
    addresses = list(dict.fromkeys(ip_address(str(entry[4][0])) for entry in found))
    if not addresses:
        raise OSError("the host has no address")
    if len(addresses) > MAX_ADDRESSES:
        raise OSError(f"the host has more than {MAX_ADDRESSES} addresses")
    return addresses
