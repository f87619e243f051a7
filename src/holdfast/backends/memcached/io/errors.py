"""What went wrong, in our words: error replies of servers, and errors of the network.

    BackendUnavailable   nothing was changed: not connected, or refused before anything was done
    OutcomeUnknown       sent, and no answer that says what came of it

A server without room for an item deletes the old one under its key, whoever's that is ("avoid stale data", says its
source), so even an error reply to a write leaves open what has changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import BackendError, BackendUnavailable, OutcomeUnknown

if TYPE_CHECKING:
    from holdfast.backends.memcached.config import Node
    from holdfast.backends.memcached.protocol.meta import Reply

_NOTHING_CHANGED = {
    "CLIENT_ERROR unauthenticated": "it wants a user and a password: memcached://user:password@host",
    "CLIENT_ERROR authentication failure": "it does not know this user with this password",
    "ERROR Too many open connections": "it has no room for another connection (-c)",
    "ERROR metadump not allowed": "it does not list its items (-X)",
    "BUSY": "it is listing its items for somebody else; try again soon",
    "ERROR": "it does not know the meta commands: use memcached 1.6.10 or newer, and no proxy that lacks them",
}


def refusal(reply: Reply, url: str, node: Node) -> BackendError:
    """The error for who asked."""
    text = reply.value.decode(errors="replace")
    for beginning, advice in _NOTHING_CHANGED.items():
        if text.startswith(beginning):
            return not_sent(url, node, f"{advice} ({text})")
    if "out of memory" in text:
        return no_answer(url, node, f"it has no memory left for a lock: give it more, or a server of its own ({text})")
    return no_answer(url, node, text)


def not_sent(url: str, node: Node, why: str) -> BackendUnavailable:
    return BackendUnavailable(backend=url, problem=f"{node}: {why}")


def no_answer(url: str, node: Node, why: str) -> OutcomeUnknown:
    return OutcomeUnknown(backend=url, problem=f"{node}: {why}")


def reason(error: BaseException) -> str:
    """Of an error of the network."""
    if isinstance(error, TimeoutError | BlockingIOError):
        return "no answer in time"
    return f"the connection broke before the answer came: {str(error) or type(error).__name__}"
