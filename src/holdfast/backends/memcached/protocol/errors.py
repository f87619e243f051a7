"""Translation of error replies of servers to the errors of holdfast.

    BackendUnavailable   nothing was changed: not connected, or refused before anything was done
    OutcomeUnknown       the request was sent, and no answer shows whether it was executed

A server without memory for an item deletes the old item under its key, even if that belongs to another client ("avoid
stale data" in its source). Even after an error reply to a write it is therefore unknown what has changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.backends.net.errors import no_answer, not_sent
from holdfast.errors import BackendError

if TYPE_CHECKING:
    from holdfast.backends.memcached.protocol.meta import Reply
    from holdfast.url_parts import Node

_NOTHING_CHANGED = {
    "CLIENT_ERROR unauthenticated": "it requires a user and a password: memcached://user:password@host",
    "CLIENT_ERROR authentication failure": "it does not know this user with this password",
    "ERROR Too many open connections": "it accepts no more connections (-c)",
    "ERROR metadump not allowed": "it does not list its items (-X)",
    "BUSY": "it is listing its items for another client; try again soon",
    "ERROR": "it does not know the meta commands: use memcached 1.6.10 or newer, and no proxy that lacks them",
}


def error_of(reply: Reply, url: str, node: Node) -> BackendError:
    """The error to raise for an error reply."""
    text = reply.value.decode(errors="replace")
    for beginning, advice in _NOTHING_CHANGED.items():
        if text.startswith(beginning):
            return not_sent(url, node, f"{advice} ({text})")
    if "out of memory" in text:
        return no_answer(
            url,
            node,
            f"it has no memory left for a lock: give it more memory, or use a separate server for locks ({text})",
        )
    return no_answer(url, node, text)
