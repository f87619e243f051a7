"""The first words on a connection: be let in, and learn which run of which server this is. Written once, for both."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol

from holdfast.backends.memcached.io import errors
from holdfast.backends.memcached.port import Life
from holdfast.backends.memcached.protocol import meta
from holdfast.errors import BackendError, BackendUnavailable, ConfigurationError

if TYPE_CHECKING:
    from holdfast.backends.memcached.config import Node, Place
    from holdfast.backends.memcached.protocol.meta import Reply

OLDEST = (1, 6, 10)  # before, a store was answered OK and not HD
_ITEM_OVERHEAD = 512  # bytes of an item that are not its value: its key and what the server notes beside it


class Wire(Protocol):
    """One connection."""

    async def exchange(self, requests: bytes, count: int, deadline: float) -> list[Reply]: ...


async def meet(wire: Wire, place: Place, node: Node, deadline: float) -> Life:
    """Returns when the connection can be used.

    Raises:
        BackendUnavailable: it did not let us in, or did not answer.
        ConfigurationError: it is set up in a way in which it cannot keep locks.
    """
    try:
        if place.user:
            (reply,) = await wire.exchange(meta.login(place.user, place.password), 1, deadline)
            if reply.code != "STORED":
                raise errors.refusal(reply, place.url, node)
        said = await wire.exchange(meta.STATS + meta.SETTINGS, 2, deadline)
        for reply in said:
            if reply.is_error:
                raise errors.refusal(reply, place.url, node)
    except BackendError as error:  # nothing of what the caller wants was sent yet
        raise BackendUnavailable(backend=error.backend, problem=error.problem) from error
    stats, settings = said
    return life_of(stats.facts(), settings.facts(), node)


def life_of(stats: dict[str, str], settings: dict[str, str], node: Node) -> Life:
    """Which run this is. `time` minus `uptime` is the same for all of it: both count by one clock that is never set."""
    version = stats.get("version", "?")
    if tuple(map(int, re.findall(r"\d+", version)[:3])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ConfigurationError(
            f"memcached at {node} is version {version}, whose meta commands differ: use {oldest} or newer"
        )
    if settings.get("cas_enabled", "yes") == "no":
        raise ConfigurationError(
            f"memcached at {node} gives its items no versions (-C), without which nobody can give back only his own "
            "lock: start it without -C"
        )
    try:
        started = int(stats["time"]) - int(stats["uptime"])
        pid = int(stats["pid"])
        item_max = int(settings.get("item_size_max", 1 << 20))
    except (KeyError, ValueError) as error:
        raise ConfigurationError(
            f"memcached at {node} does not say when it was started: {error!r}; is it something else, or a proxy?"
        ) from error
    return Life(started, pid, item_max - _ITEM_OVERHEAD, settings.get("evictions", "on") != "off")
