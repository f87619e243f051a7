"""Hosts in network namespaces, with a router between them that can isolate some.

    n0 ──┐                a firewall rule of the router decides about packets from one host to another: real packets
    n1 ──┼── router       are dropped, or answered by a TCP reset or an ICMP message
    a  ──┘

This requires root. A namespace ends with its last process, so a killed test run leaves nothing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path

import pytest

from holdfast_lab.conformance import forked
from tests.support.partitions.namespaces import enter_namespace
from tests.support.server_process import HERE, Host, missing

_NEEDED = ("ip", "nft", "nsenter", "unshare")
_OWN_NETWORK = Path("/proc/thread-self/ns/net")


class Cut(Enum):
    """The firewall verdict for packets from the isolated host and for packets to it."""

    DROP = ("drop", "drop")
    RESET = ("reject with tcp reset", "reject with tcp reset")  # the sender gets a reset
    UNREACHABLE = ("reject with icmp type host-unreachable", "reject with icmp type host-unreachable")
    LOSE_REQUESTS = ("drop", "")  # the isolated host is a client
    LOSE_REPLIES = ("", "drop")  # the isolated host is a client


# UNREACHABLE has the same effect as DROP on servers. RESET and LOSE_REQUESTS only change how soon the isolated server
# drops its clients. One test has all kinds of cuts between a client and the servers.
BETWEEN_SERVERS = [
    Cut.DROP,
    pytest.param(Cut.RESET, marks=pytest.mark.extra),
    pytest.param(Cut.LOSE_REQUESTS, marks=pytest.mark.extra),
    Cut.LOSE_REPLIES,
]


class Network:
    """The hosts by name, and the router. Created by `network`."""

    def __init__(self, hosts: dict[str, Host], router: Path) -> None:
        self.hosts = hosts
        self._router = router

    def cut_off(self, isolated: Host, others: Sequence[Host], how: Cut) -> None:
        """Isolate a host from others, in addition to existing cuts."""
        forth, back = how.value
        for other in others:
            self._rule(isolated, other, forth)
            self._rule(other, isolated, back)

    def heal(self) -> None:
        """Remove all cuts."""
        with inside(self._router):
            _run("nft", "flush", "chain", "ip", "cuts", "forward")

    def inside_router(self) -> contextlib.AbstractContextManager[None]:
        """Run on the router, which reaches all hosts in spite of cuts."""
        return inside(self._router)

    def _rule(self, source: Host, target: Host, verdict: str) -> None:
        if verdict:
            packets = f"ip saddr {source.address} ip daddr {target.address} meta l4proto tcp"
            with inside(self._router):
                _run("nft", f"add rule ip cuts forward {packets} {verdict}")


@contextlib.contextmanager
def network(*names: str) -> Iterator[Network]:
    """Create a network with these hosts. Skip the test (CI=true: fail it) if that is impossible."""
    if os.getuid() != 0:
        missing("network namespaces require root")
    absent = [name for name in _NEEDED if shutil.which(name) is None]
    if absent:
        missing(f"no {', '.join(absent)} on this machine, which network namespaces need: `make servers` installs them")
    forked.prepare()  # before this thread enters the router: other tests use that process too
    with contextlib.ExitStack() as stack:
        try:
            created_network = _make(stack, names)
        except (OSError, subprocess.CalledProcessError) as error:
            missing(f"this machine does not allow network namespaces: {error}")
        yield created_network


def _make(stack: contextlib.ExitStack, names: Sequence[str]) -> Network:
    router = _namespace(stack.enter_context(_namespace_process()))
    hosts = {}
    with inside(router):
        _ip("link set lo up")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        _run("nft", "add table ip cuts; add chain ip cuts forward { type filter hook forward priority 0; }")
        for number, name in enumerate(names):
            process = stack.enter_context(_namespace_process())
            gateway, address = f"10.77.{number}.1", f"10.77.{number}.2"
            host = hosts[name] = Host(address, _namespace(process))
            _ip(f"link add to{number} type veth peer name eth0 netns {process.pid}")
            _ip(f"addr add {gateway}/24 dev to{number}", f"link set to{number} up")
            _ip("link set lo up", f"addr add {address}/24 dev eth0", "link set eth0 up", host=host)
            _ip(f"route add default via {gateway}", host=host)
    return Network(hosts, router)


@contextlib.contextmanager
def inside(namespace: Path) -> Iterator[None]:
    """Switch this thread to a namespace: its new sockets, processes and threads belong to it."""
    with open(_OWN_NETWORK) as own, open(namespace) as wanted:
        enter_namespace(wanted.fileno())
        try:
            yield
        finally:
            enter_namespace(own.fileno())


@contextlib.contextmanager
def _namespace_process() -> Iterator[subprocess.Popen[bytes]]:
    """Start a process in a new namespace. It ends with its stdin, and so also when this process is killed."""
    pipe = subprocess.PIPE
    with subprocess.Popen(["unshare", "--net", "cat"], stdin=pipe, stdout=pipe, bufsize=0) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"!")
        if process.stdout.read(1) != b"!":  # `cat` runs, so the namespace exists
            raise OSError("unshare --net failed")
        yield process


def _namespace(process: subprocess.Popen[bytes]) -> Path:
    return Path(f"/proc/{process.pid}/ns/net")


def _ip(*commands: str, host: Host = HERE) -> None:
    _run(*host.under, "ip", "-batch", "-", stdin="".join(f"{command}\n" for command in commands))


def _run(*command: str, stdin: str = "") -> None:
    subprocess.run(command, input=stdin, text=True, check=True)
