"""Places of a network, each with an address and a link of its own that can be cut.

Where the machine permits it a place is a network namespace, and its link is a pair of virtual Ethernet devices, one
end of which is a port of a bridge; to cut it is to set the port down, so that packets vanish and nobody is told. All of
that lies in namespaces: nothing is added to the network of the machine. Elsewhere a place is an address of the loopback
device, and its link is a relay which, when it is cut, carries nothing on and answers nobody.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

__all__ = ["Namespaces", "Network", "Relays", "mortal", "namespaces_work", "open_network"]

PREFIX = "mcpn"
RELAY = Path(__file__).parent / "relay.py"
GUARDIAN = Path(__file__).parent / "guardian.py"
COMMAND_LIMIT = 20.0  # seconds for one command of ``ip``; it takes a hundredth of one
LOOPBACK = os.environ.get("MCP_NODES_LOOPBACK") == "1"
"""Whether relays are taken although namespaces may work."""
GONE_LIMIT = 5.0  # seconds until the processes of an abandoned namespace are gone


class Network(Protocol):
    """The places by name. A place listens at its `address`; the others reach it at its `reached`."""

    kind: str

    def address(self, place: str) -> str: ...

    def reached(self, place: str) -> str: ...

    def command(self, place: str, command: Sequence[str]) -> list[str]:
        """Returns the command that runs ``command`` at a place."""
        ...

    def cut(self, place: str) -> None: ...

    def heal(self, place: str) -> None: ...


@contextmanager
def open_network(places: Sequence[str], ports: Sequence[int]) -> Iterator[Network]:
    """Makes a network and takes it away again, however the block ends.

    Args:
        places: Their names, at most eight letters each.
        ports: The ports at which places may listen; only the relay needs to know them.
    """
    remove_abandoned()
    if not LOOPBACK and namespaces_work():
        network = Namespaces(places)
        try:
            network.make()
            yield network
        finally:
            network.remove()
        return
    relayed = Relays(places, ports)
    try:
        relayed.make()
        yield relayed
    finally:
        relayed.remove()


def namespaces_work() -> bool:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"{PREFIX}-{os.getpid()}-try"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode != 0:
        return False
    bridge = ["ip", "-n", name, "link", "add", "bridge", "type", "bridge"]
    pair = ["ip", "-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", "port"]
    done = [subprocess.run(each, capture_output=True, check=False) for each in (bridge, pair)]
    ip("netns", "delete", name)
    return all(each.returncode == 0 for each in done)


def mortal(command: Sequence[str]) -> list[str]:
    """Returns a command whose process is killed by the kernel when the thread that started it is no more."""
    setpriv = shutil.which("setpriv")
    return [*((setpriv, "--pdeathsig", "KILL") if setpriv else ()), *command]


def ip(*arguments: str) -> str:
    done = subprocess.run(
        ["ip", *arguments], capture_output=True, text=True, timeout=COMMAND_LIMIT, check=False
    )
    assert done.returncode == 0, f"ip {' '.join(arguments)} failed: {done.stderr}"
    return done.stdout


def remove_abandoned() -> None:
    """Removes the namespaces of runs that were killed: those whose process is no more."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        return
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    for line in listed.stdout.splitlines():
        name = line.split()[0]
        prefix, _, rest = name.partition("-")
        owner = rest.partition("-")[0]
        if prefix == PREFIX and owner.isdecimal() and not Path(f"/proc/{owner}").exists():
            remove_namespace(name)


def remove_namespace(name: str) -> None:
    """Kills what runs in a namespace, which is ours, and removes it with its devices."""
    end = time.monotonic() + GONE_LIMIT
    while time.monotonic() < end:
        listed = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
        if not listed.stdout.split():
            break
        for process in listed.stdout.split():
            try:
                os.kill(int(process), signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.05)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


class Namespaces:
    """Each place is a network namespace; one more holds the bridge that connects them."""

    kind = "network namespaces with veth links to a bridge"

    def __init__(self, places: Sequence[str]) -> None:
        self._names = {place: f"{PREFIX}-{os.getpid()}-{place}" for place in places}
        self._addresses = {place: f"10.213.0.{number}" for number, place in enumerate(places, start=1)}
        self._bridge = f"{PREFIX}-{os.getpid()}-bridge"
        self._guardian: subprocess.Popen[bytes] | None = None

    @property
    def _all(self) -> list[str]:
        return [*self._names.values(), self._bridge]

    def make(self) -> None:
        # The guardian is in a session of its own, so that what kills the whole group of a run spares it.
        self._guardian = subprocess.Popen(
            [sys.executable, str(GUARDIAN), *self._all], stdin=subprocess.PIPE, start_new_session=True
        )
        ip("netns", "add", self._bridge)
        ip("-n", self._bridge, "link", "add", "bridge", "type", "bridge")
        ip("-n", self._bridge, "link", "set", "bridge", "up")
        for place, name in self._names.items():
            ip("netns", "add", name)
            ip(
                "link",
                "add",
                "eth0",
                "netns",
                name,
                "type",
                "veth",
                "peer",
                "name",
                place,
                "netns",
                self._bridge,
            )
            ip("-n", self._bridge, "link", "set", place, "master", "bridge", "up")
            ip("-n", name, "address", "add", f"{self._addresses[place]}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")

    def remove(self) -> None:
        for name in self._all:
            remove_namespace(name)
        if self._guardian is not None:
            self._guardian.communicate()

    def address(self, place: str) -> str:
        return self._addresses[place]

    def reached(self, place: str) -> str:
        return self._addresses[place]

    def command(self, place: str, command: Sequence[str]) -> list[str]:
        return ["ip", "netns", "exec", self._names[place], *command]

    def cut(self, place: str) -> None:
        ip("-n", self._bridge, "link", "set", place, "down")

    def heal(self, place: str) -> None:
        ip("-n", self._bridge, "link", "set", place, "up")


class Relays:
    """Each place is an address of the loopback device, with a relay in front of it that can be cut.

    Only what others send to a place goes through its relay. What a place sends to others goes through theirs, and so a
    place that is cut off can still speak to those that are not: that is less than a cable that was pulled.
    """

    kind = "processes on loopback addresses behind relays that cut"

    def __init__(self, places: Sequence[str], ports: Sequence[int]) -> None:
        network = 20 + os.getpid() % 200
        self._addresses = {
            place: (f"127.{network}.0.{number}", f"127.{network}.1.{number}")
            for number, place in enumerate(places, start=1)
        }
        self._ports = [str(port) for port in ports]
        self._relays: dict[str, subprocess.Popen[str]] = {}

    def make(self) -> None:
        for place, (address, reached) in self._addresses.items():
            command = [sys.executable, str(RELAY), reached, address, *self._ports]
            relay = subprocess.Popen(
                mortal(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
            )
            self._relays[place] = relay
            assert relay.stdout is not None
            assert relay.stdout.readline() == "ready\n"

    def remove(self) -> None:
        for relay in self._relays.values():
            relay.kill()
            relay.wait()
            if relay.stdout is not None:
                relay.stdout.close()

    def address(self, place: str) -> str:
        return self._addresses[place][0]

    def reached(self, place: str) -> str:
        return self._addresses[place][1]

    def command(self, place: str, command: Sequence[str]) -> list[str]:
        return list(command)

    def cut(self, place: str) -> None:
        self._relays[place].send_signal(signal.SIGUSR1)

    def heal(self, place: str) -> None:
        self._relays[place].send_signal(signal.SIGUSR2)
