"""The handshake on a new connection: log in, and identify the server run. Shared by threads and asyncio."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from holdfast.backends.memcached.port import ServerRun
from holdfast.backends.memcached.protocol import errors, meta
from holdfast.backends.net.passwords import ask_password
from holdfast.errors import BackendError, BackendUnavailable, ConfigurationError

if TYPE_CHECKING:
    from holdfast.backends.memcached.config import MemcachedConfig
    from holdfast.backends.net.poller import Poller
    from holdfast.url_parts import Node

OLDEST = (1, 6, 10)  # older versions reply OK instead of HD to a store
_ITEM_OVERHEAD = 512  # bytes of an item beside its value: the key and the server's header


async def handshake(
    exchange: Callable[[bytes, int, float], Awaitable[list[meta.Reply]]],
    config: MemcachedConfig,
    node: Node,
    poller: Poller,
    deadline: float,
) -> ServerRun:
    """Make a connection ready for requests. `exchange` sends requests on it, until a deadline, and returns the replies.

    Raises:
        BackendUnavailable: the server refused the login, or did not answer.
        ConfigurationError: the settings of the server rule out locks.
    """
    try:
        if config.user:
            password = await ask_password(config.password, config.url, poller, deadline)
            (reply,) = await exchange(meta.login(config.user, password), 1, deadline)
            if reply.code != "STORED":
                raise errors.error_of(reply, config.url, node)
        replies = await exchange(meta.STATS + meta.SETTINGS, 2, deadline)
        for reply in replies:
            if reply.is_error:
                raise errors.error_of(reply, config.url, node)
    except BackendError as error:  # no request of the caller was sent yet
        raise BackendUnavailable(backend=error.backend, problem=error.problem) from error
    stats, settings = replies
    return server_run_of(stats.stats(), settings.stats(), node)


def server_run_of(stats: dict[str, str], settings: dict[str, str], node: Node) -> ServerRun:
    """Identify the run. `time` minus `uptime` is constant in it: both count on one clock that is never set."""
    version = stats.get("version", "?")
    if tuple(map(int, re.findall(r"\d+", version)[:3])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ConfigurationError(
            f"memcached at {node} is version {version}, whose meta commands differ: use {oldest} or newer"
        )
    if settings.get("cas_enabled", "yes") == "no":
        raise ConfigurationError(
            f"memcached at {node} gives its items no versions (-C), without which a client cannot release only its own "
            "lock: start it without -C"
        )
    try:
        started = int(stats["time"]) - int(stats["uptime"])
        pid = int(stats["pid"])
        item_max = int(settings.get("item_size_max", 1 << 20))
    except (KeyError, ValueError) as error:
        raise ConfigurationError(
            f"memcached at {node} does not report when it was started: {error!r}; is it another program, or a proxy?"
        ) from error
    return ServerRun(started, pid, item_max - _ITEM_OVERHEAD, settings.get("evictions", "on") != "off")
