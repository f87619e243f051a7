"""What went wrong, in our words: error replies of servers, and errors of the driver and the network.

Three kinds must never look alike:

    BackendUnavailable   nothing was changed: not connected, or refused before anything was done
    OutcomeUnknown       sent, and no answer that says what came of it
    NameConflict         the key is there and is something else

A script may fail half-way, so an error reply that is not known to mean "nothing was changed" is an OutcomeUnknown.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from holdfast.errors import BackendUnavailable, HoldfastError, NameConflict, OutcomeUnknown

if TYPE_CHECKING:
    from holdfast.backends.redis.config import Node
    from holdfast.backends.redis.io.resp import ErrorReply

# Refused before the command or the script began, or by the first write in it (all our scripts read and check before
# they write): https://redis.io/docs/latest/develop/reference/protocol-spec/#simple-errors and server.c, processCommand.
_NOTHING_CHANGED = {
    "LOADING": "it is still loading its data; try again soon",
    "READONLY": "it is a replica: name the primary, or use redis+sentinel:// or redis+cluster:// to follow it",
    "MISCONF": "it cannot save to disk and refuses writes; look at its log and at the disk",
    "OOM": "it has no memory left (maxmemory) and refuses writes: give it more, or a server of its own",
    "NOREPLICAS": "it has fewer replicas than min-replicas-to-write asks for; are they down?",
    "MASTERDOWN": "it is a replica that has lost its primary",
    "CLUSTERDOWN": "the Cluster is down, or a part of it; try again soon",
    "TRYAGAIN": "the lock's keys are on their way to another server of the Cluster; try again soon",
    "MOVED": "the lock's keys are on another server: this is a Cluster, use redis+cluster://",
    "ASK": "the lock's keys are on their way to another server: this is a Cluster, use redis+cluster://",
    "NOAUTH": "it wants a password: redis://user:password@host",
    "WRONGPASS": "it does not know this user with this password",
    "NOPERM": "this user may not do that: let it run scripts, and use the keys and channels of the prefix "
    "(ACL SETUSER … ~holdfast:* &holdfast:* +@read +@write +@scripting +@pubsub +time +info)",
    "DENIED": "it is in protected mode and takes no connections from elsewhere: set a password or an address to bind",
    "BUSY": "a script of somebody's has been running for too long (SCRIPT KILL ends it)",
    "NOSCRIPT": "it does not know a script that it was given just now",
    "NOPROTO": "it does not speak RESP2",
    "EXECABORT": "it discarded the transaction",
    "IDONTKNOW": "this Sentinel does not know the state of the primary",
    "max number of clients reached": "it has no room for another connection (maxclients)",
    "DB index is out of range": "it has no such database",
    "unknown command": "it does not know a command that is needed: use Redis 6.2 or newer, or Valkey",
}

# 6.2 wraps what a command inside a script answered: ERR Error running script (call to f_<sha>): @user_script:3: <that>,
# where <that> may begin with "-", and up to 7.0 in "@user_script: 3:" with a blank, and what the server itself refuses
# has both; 7.0 only adds words behind it.
_WRAPPED = re.compile(r"^ERR Error running script \(call to f_\w+\): (?:@[\w.]+: ?\d+: )+-?(.*)$", re.DOTALL)
_ADDED = re.compile(r",? script: (?:\w+, )?on @\w+:\d+\.$")


class Redirection(NamedTuple):
    """Not here: where a Cluster wants it."""

    slot: int
    host: str  # empty: the server that says so
    port: int
    is_final: bool  # MOVED: from now on; else ASK: this once


def code_of(reply: ErrorReply) -> str:
    """The word that says which error it is; where there is only ERR, the known words that stand for one."""
    return _known(_unwrapped(str(reply)))


def redirection(reply: ErrorReply) -> Redirection | None:
    """Where to go instead, if that is what it says."""
    words = str(reply).split()
    if not words or words[0] not in {"MOVED", "ASK"}:
        return None
    host, _, port = words[2].rpartition(":")
    return Redirection(int(words[1]), host, int(port), words[0] == "MOVED")


def refusal(reply: ErrorReply, url: str, node: Node, lock: str) -> HoldfastError:
    """The error for who asked."""
    text = _unwrapped(str(reply))
    code = _known(text)
    if code == "WRONGTYPE":
        return NameConflict(
            lock=lock,
            reason="the server keeps something else under its key or under one beside it; use another name or prefix",
        )
    advice = _NOTHING_CHANGED.get(code)
    if advice is None:
        return OutcomeUnknown(backend=url, problem=f"{node}: {text}")
    return BackendUnavailable(backend=url, problem=f"{node}: {advice} ({text})")


def not_connected(error: BaseException, url: str, node: Node) -> BackendUnavailable:
    """Nothing was sent yet but who we are."""
    text = str(error) or type(error).__name__
    advice = _NOTHING_CHANGED.get(_known(text))
    return BackendUnavailable(backend=url, problem=f"{node}: {advice} ({text})" if advice else f"{node}: {text}")


def not_sent(url: str, node: Node, why: str) -> BackendUnavailable:
    return BackendUnavailable(backend=url, problem=f"{node}: {why}")


def no_answer(url: str, node: Node, why: str) -> OutcomeUnknown:
    return OutcomeUnknown(backend=url, problem=f"{node}: {why}")


def _unwrapped(text: str) -> str:
    wrapped = _WRAPPED.match(text)
    return _ADDED.sub("", wrapped[1] if wrapped else text)


def _known(text: str) -> str:
    code = text.partition(" ")[0]
    if code != "ERR" and (code in _NOTHING_CHANGED or code.isupper()):
        return code
    return next((words for words in _NOTHING_CHANGED if " " in words and words in text), code)
