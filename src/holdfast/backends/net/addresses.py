"""The addresses of a host name, looked up before a deadline. No other module calls getaddrinfo().

getaddrinfo() blocks for 10 s and more while the name servers are silent. It therefore runs on its own thread, with at
most one look-up per host at a time. All callers that need the host wait for the same result, each until its own
deadline.
"""

from __future__ import annotations

import ipaddress
import socket

from holdfast.backends.net.calls import BackgroundCall
from holdfast.backends.net.poller import Poller
from holdfast.runtimes import system

# Seconds for which the last answer is used while look-ups fail, as the usual DNS caches do. A longer time is not safe,
# because the address may belong to another server by then.
KEPT_MAX = 30.0

_TRY_AGAIN = getattr(socket, "EAI_AGAIN", None)

_lookups: dict[str, BackgroundCall[list[str]]] = {}  # look-ups that are not done
_answers: dict[str, tuple[float, list[str]]] = {}  # the last answer for each host, and when it arrived


def is_numeric(host: str) -> bool:
    """The host is an IP address."""
    try:
        ipaddress.ip_address(host.partition("%")[0])  # without the zone of an IPv6 address
    except ValueError:
        return False
    return True


async def addresses_of(host: str, poller: Poller, deadline: float) -> list[str]:
    """The addresses of this host.

    Raises:
        OSError: the host has no address, or no answer arrived in time (a TimeoutError).
    """
    if is_numeric(host):
        return [host]
    now = system.now()
    received_at, recent = _answers.get(host, (0.0, []))
    if system.process_ends and recent:
        # A look-up may not get a thread any more. The last connection used this answer, so its age does not matter.
        return recent
    if now - received_at > KEPT_MAX:
        recent = []
    lookup = _lookup(host)
    # If there is a recent answer, leave time to use it in case the name server is silent.
    if not await poller.wait_done(lookup, now + (deadline - now) / 2 if recent else deadline):
        if recent:
            return recent
        raise TimeoutError(f"no answer in time to the look-up of {host}")
    try:
        return lookup.result()
    except OSError as error:
        if recent and error.errno == _TRY_AGAIN:
            return recent
        raise type(error)(*error.args) from error  # a copy: several callers may raise it at the same time


def _lookup(host: str) -> BackgroundCall[list[str]]:
    """The look-up in progress, or a new one. An interrupt must not leave a registered look-up that never ends."""
    new: BackgroundCall[list[str]] = BackgroundCall(lambda: _look_up(host, new), "lookup")
    try:
        lookup = _lookups.setdefault(host, new)
        if lookup is new:
            new.start()
    except BaseException as error:
        _forget(host, new)
        new.set_exception(error if isinstance(error, OSError) else OSError("the look-up was interrupted"))
        raise
    return lookup


def _look_up(host: str, lookup: BackgroundCall[list[str]]) -> list[str]:
    try:
        results = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"{host!r} is not a host name: {error}") from error
    finally:
        _forget(host, lookup)  # before it is done, because a later caller must not get this answer
    addresses = list(dict.fromkeys(_numeric(sockaddr) for *_, sockaddr in results))
    _answers[host] = (system.now(), addresses)
    return addresses


def _numeric(sockaddr: tuple[object, ...]) -> str:
    """The address, with its zone if it is a scoped IPv6 address."""
    # An IPv6 sockaddr is (address, port, flow, zone).
    address, zone = str(sockaddr[0]), sockaddr[3] if len(sockaddr) > 3 else 0  # noqa: PLR2004
    return f"{address}%{zone}" if zone and "%" not in address else address


def _forget(host: str, lookup: BackgroundCall[list[str]]) -> None:
    if _lookups.get(host) is lookup:
        _lookups.pop(host, None)


system.after_fork_in_child(_lookups.clear)  # their threads run in the parent only
