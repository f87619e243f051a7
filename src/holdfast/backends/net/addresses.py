"""The addresses of a host name, looked up within a deadline. The only place that calls getaddrinfo().

getaddrinfo() blocks for 10 s and more while the name servers are silent. So it runs on a thread of its own, at most one
for each host at a time; all callers that want the host meanwhile wait for the same result, each until its own deadline.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING

from holdfast.backends.net.calls import BackgroundCall
from holdfast.runtimes import system

if TYPE_CHECKING:
    from holdfast.backends.net.poller import Poller

# Seconds for which the last answer is used while a look-up gets none, as the usual caches of name servers would. Not
# longer: the address may be another server's by then.
KEPT_MAX = 30.0

_TRY_AGAIN = getattr(socket, "EAI_AGAIN", None)

_lookups: dict[str, BackgroundCall[list[str]]] = {}  # those that are not done
_answers: dict[str, tuple[float, list[str]]] = {}  # the last answer of each host, and when it came


def is_numeric(host: str) -> bool:
    """It is an address itself."""
    try:
        ipaddress.ip_address(host.partition("%")[0])  # without the zone of an IPv6 address
    except ValueError:
        return False
    return True


async def addresses_of(host: str, poller: Poller, deadline: float) -> list[str]:
    """The addresses of this host.

    Raises:
        OSError: there is none, or no answer came in time (a TimeoutError).
    """
    if is_numeric(host):
        return [host]
    now = system.now()
    came_at, recent = _answers.get(host, (0.0, []))
    if system.process_ends and recent:
        # There may be no thread for a look-up any more. Whatever the answer's age, the last connection used it.
        return recent
    if now - came_at > KEPT_MAX:
        recent = []
    lookup = _lookup(host)
    # With a recent answer at hand, a name server that is silent must leave time to use it.
    if not await poller.finished(lookup, now + (deadline - now) / 2 if recent else deadline):
        if recent:
            return recent
        raise TimeoutError(f"no answer in time to the look-up of {host}")
    try:
        return lookup.result()
    except OSError as error:
        if recent and error.errno == _TRY_AGAIN:
            return recent
        raise type(error)(*error.args) from error  # a new one: several callers may raise it at the same time


def _lookup(host: str) -> BackgroundCall[list[str]]:
    """The one that is under way, or a new one. An interrupt must not leave one behind that never ends."""
    new: BackgroundCall[list[str]] = BackgroundCall(lambda: _look_up(host, new), "lookup")
    try:
        lookup = _lookups.setdefault(host, new)
        if lookup is new:
            new.start()
    except BaseException as error:
        _forget(host, new)
        new.fail(error if isinstance(error, OSError) else OSError("the look-up was interrupted"))
        raise
    return lookup


def _look_up(host: str, lookup: BackgroundCall[list[str]]) -> list[str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"{host!r} is not a host name: {error}") from error
    finally:
        _forget(host, lookup)  # before it is done: a later caller must not get this answer
    addresses = list(dict.fromkeys(_numeric(place) for *_, place in found))
    _answers[host] = (system.now(), addresses)
    return addresses


def _numeric(place: tuple[object, ...]) -> str:
    """The address, with the zone where an IPv6 address has one."""
    address, zone = str(place[0]), place[3] if len(place) > 3 else 0  # noqa: PLR2004 (address, port, flow, zone)
    return f"{address}%{zone}" if zone and "%" not in address else address


def _forget(host: str, lookup: BackgroundCall[list[str]]) -> None:
    if _lookups.get(host) is lookup:
        _lookups.pop(host, None)


system.after_fork_in_child(_lookups.clear)  # their threads are the parent's
