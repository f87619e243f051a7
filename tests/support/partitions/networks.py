"""Hosts with a network of their own: each a namespace of the kernel's, and between them a router that can cut some off.

    n0 ──┐                what the router does with a packet from one host to another is a rule of its firewall, so
    n1 ──┼── router       a cut is of real packets: they vanish, or are answered by a reset, or by an ICMP message
    a  ──┘

Only root can make one. What is made ends with the processes that are in it, so a killed test run leaves nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from tests.support.redis.binaries import missing

_NEEDED = ("ip", "nft", "nsenter", "unshare")
_CLONE_NEWNET = 0x40000000
_OWN_NETWORK = Path("/proc/thread-self/ns/net")


class Host(NamedTuple):
    """Where a process can be."""

    address: str
    namespace: Path | None = None  # None: our own

    @property
    def under(self) -> list[str]:
        """The command that has the one behind it run there."""
        return [] if self.namespace is None else ["nsenter", f"--net={self.namespace}", "--"]


HERE = Host("127.0.0.1")


class Cut(Enum):
    """What happens to packets between `one` and the others: from it, and to it."""

    DROP = ("drop", "drop")
    RESET = ("reject with tcp reset", "reject with tcp reset")  # who sends hears that nobody is there
    UNREACHABLE = ("reject with icmp type host-unreachable", "reject with icmp type host-unreachable")
    SENDS_IN_VAIN = ("drop", "")  # of a client: requests are lost
    HEARS_NOTHING = ("", "drop")  # of a client: replies are lost


BETWEEN_SERVERS = [how for how in Cut if how is not Cut.UNREACHABLE]  # which servers take as they take DROP


class Network:
    """The hosts by their names, and the router. Made by `network`."""

    def __init__(self, hosts: dict[str, Host], router: Path) -> None:
        self.hosts = hosts
        self._router = router

    def cut_off(self, one: Host, others: Sequence[Host], how: Cut) -> None:
        """Beside what is cut already."""
        there, back = how.value
        for other in others:
            self._rule(one, other, there)
            self._rule(other, one, back)

    def heal(self) -> None:
        """Everything gets through again. What was lost stays lost."""
        with inside(self._router):
            _run("nft", "flush", "chain", "ip", "cuts", "forward")

    def at_the_router(self) -> contextlib.AbstractContextManager[None]:
        """From where this thread reaches all of them, whatever is cut."""
        return inside(self._router)

    def _rule(self, source: Host, target: Host, verdict: str) -> None:
        if verdict:
            which = f"ip saddr {source.address} ip daddr {target.address} meta l4proto tcp"
            with inside(self._router):
                _run("nft", f"add rule ip cuts forward {which} {verdict}")


@contextlib.contextmanager
def network(*names: str) -> Iterator[Network]:
    """One with these hosts. Skips the test (CI=true: fails it) where none can be made."""
    if os.getuid() != 0:
        missing("only root can make hosts with a network of their own")
    absent = [name for name in _NEEDED if shutil.which(name) is None]
    if absent:
        missing(f"no {', '.join(absent)} on this machine, to make hosts with a network: `make servers` installs them")
    with contextlib.ExitStack() as stack:
        try:
            made = _make(stack, names)
        except (OSError, subprocess.CalledProcessError) as error:
            missing(f"this machine lets nobody make hosts with a network of their own: {error}")
        yield made


def _make(stack: contextlib.ExitStack, names: Sequence[str]) -> Network:
    router = _namespace(stack.enter_context(_kept_open()))
    hosts = {}
    with inside(router):
        _ip("link set lo up")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        _run("nft", "add table ip cuts; add chain ip cuts forward { type filter hook forward priority 0; }")
        for number, name in enumerate(names):
            keeper = stack.enter_context(_kept_open())
            gate, address = f"10.77.{number}.1", f"10.77.{number}.2"
            host = hosts[name] = Host(address, _namespace(keeper))
            _ip(f"link add to{number} type veth peer name eth0 netns {keeper.pid}")
            _ip(f"addr add {gate}/24 dev to{number}", f"link set to{number} up")
            _ip("link set lo up", f"addr add {address}/24 dev eth0", "link set eth0 up", host=host)
            _ip(f"route add default via {gate}", host=host)
    return Network(hosts, router)


@contextlib.contextmanager
def inside(namespace: Path) -> Iterator[None]:
    """Sockets that this thread makes, and processes and threads that it starts, are in this namespace."""
    with open(_OWN_NETWORK) as own, open(namespace) as wanted:
        _try_acquire(wanted.fileno())
        try:
            yield
        finally:
            _try_acquire(own.fileno())


def _try_acquire(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)  # os.setns came with Python 3.12
    if libc.setns(namespace, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


@contextlib.contextmanager
def _kept_open() -> Iterator[subprocess.Popen[bytes]]:
    """A process in a namespace of its own. It ends with its stdin, and so with us, whatever becomes of us."""
    pipe = subprocess.PIPE
    with subprocess.Popen(["unshare", "--net", "cat"], stdin=pipe, stdout=pipe, bufsize=0) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"!")
        if process.stdout.read(1) != b"!":  # it is `cat` by now, and so in there
            raise OSError("unshare --net failed")
        yield process


def _namespace(process: subprocess.Popen[bytes]) -> Path:
    return Path(f"/proc/{process.pid}/ns/net")


def _ip(*commands: str, host: Host = HERE) -> None:
    _run(*host.under, "ip", "-batch", "-", said="".join(f"{command}\n" for command in commands))


def _run(*command: str, said: str = "") -> None:
    subprocess.run(command, input=said, text=True, check=True)
