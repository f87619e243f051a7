"""Error translation: error replies of servers, and errors of the driver and the network.

Four cases must never be confused:

    BackendUnavailable   nothing was changed: not connected, or refused before anything was executed
    OutcomeUnknown       sent, and no reply shows the result
    NameConflict         the key exists and has another type
    AccessDenied         nothing was changed: an ACL does not allow this user to run the command

A script may fail half-way, so an error reply that is not known to mean "nothing was changed" is an OutcomeUnknown.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from holdfast.backends.net.errors import located, no_answer, not_sent
from holdfast.errors import AccessDenied, BackendError, HoldfastError, NameConflict

if TYPE_CHECKING:
    from holdfast.backends.redis.io.resp import ErrorReply
    from holdfast.url_parts import Node

# Refused before the command or script began, or by its first write (all scripts read and check before they write):
# https://redis.io/docs/latest/develop/reference/protocol-spec/#simple-errors and server.c, processCommand.
_NOTHING_CHANGED = {
    "LOADING": "it is still loading its data; try again soon",
    "READONLY": "it is a replica: name the primary, or use redis+sentinel:// or redis+cluster:// to follow it",
    "MISCONF": "it cannot save to disk and refuses writes; check its log and the disk",
    "OOM": "it has no memory left (maxmemory) and refuses writes: give it more, or a server of its own",
    "NOREPLICAS": "it has fewer replicas than min-replicas-to-write requires; are they down?",
    "MASTERDOWN": "it is a replica that has lost its primary",
    "CLUSTERDOWN": "the Cluster is down, or a part of it; try again soon",
    "TRYAGAIN": "the lock's keys are being moved to another server of the Cluster; try again soon",
    "MOVED": "the lock's keys are on another server: this is a Cluster, use redis+cluster://",
    "ASK": "the lock's keys are being moved to another server: this is a Cluster, use redis+cluster://",
    "CROSSSLOT": "the lock's keys are in different slots: this is a Cluster, use redis+cluster://",
    "NOAUTH": "it requires a password: redis://user:password@host",
    "WRONGPASS": "it does not know this user with this password",
    "DENIED": "it is in protected mode and takes no connections from elsewhere: set a password or an address to bind",
    "BUSY": "a script of another client has been running for too long (SCRIPT KILL ends it)",
    "NOSCRIPT": "it does not know a script that was loaded just now",
    "NOPROTO": "it does not speak RESP2",
    "EXECABORT": "it discarded the transaction",
    "IDONTKNOW": "this Sentinel does not know the state of the primary",
    "max number of clients reached": "it has no room for another connection (maxclients)",
    "DB index is out of range": "it has no such database",
    "unknown command": "it does not know a command that is needed: use Redis 6.2 or newer, or Valkey",
}

_NOPERM = (
    "this user lacks a permission, and `ACL LOG` on the server shows which: it needs the keys ~prefix*, the channels "
    "&prefix*, and the commands of docs/backends/redis-permissions.md"
)
# A command inside a script that the user may not run: Redis 6.2 to 7.0, and later versions and Valkey.
_NOPERM_IN_SCRIPT = ("The user executing the script can't", "ACL failure in script")

# Redis 6.2 wraps the error of a command inside a script: ERR Error running script (call to f_<sha>): @user_script:3:
# <error>. The error may begin with "-". Up to 7.0 there is a blank in "@user_script: 3:", and an error of the server
# itself has both forms. Redis 7.0 only appends words.
_WRAPPED = re.compile(r"^ERR Error running script \(call to f_\w+\): (?:@[\w.]+: ?\d+: )+-?(.*)$", re.DOTALL)
_ADDED = re.compile(r",? script: (?:\w+, )?on @\w+:\d+\.$")


class Redirection(NamedTuple):
    """MOVED or ASK of a Cluster: the server to use instead."""

    slot: int
    host: str  # empty: the server that replied
    port: int
    is_final: bool  # MOVED: from now on; otherwise ASK: for this request only


def code_of(reply: ErrorReply) -> str:
    """The code of an error; for a generic ERR, the known text that identifies it."""
    return _known(_unwrapped(str(reply)))


def redirection(reply: ErrorReply) -> Redirection | None:
    """The redirection in an error reply, if it is one."""
    words = str(reply).split()
    if not words or words[0] not in {"MOVED", "ASK"}:
        return None
    host, _, port = words[2].rpartition(":")
    return Redirection(int(words[1]), host, int(port), words[0] == "MOVED")


def refusal(reply: ErrorReply, url: str, node: Node, lock: str) -> HoldfastError:
    """The exception for an error reply."""
    text = _unwrapped(str(reply))
    code = _known(text)
    if code == "WRONGTYPE":
        return NameConflict(
            lock=lock,
            reason="its key or one of its side keys exists with another type; use another name or prefix",
        )
    if code == "NOPERM":
        return AccessDenied(backend=url, problem=located(url, node, f"{_NOPERM} ({text})"))
    if any(words in text for words in _NOPERM_IN_SCRIPT):  # earlier commands of the script were executed
        return no_answer(url, node, f"{_NOPERM} ({text})")
    advice = _NOTHING_CHANGED.get(code)
    if advice is None:
        return no_answer(url, node, text)
    return not_sent(url, node, f"{advice} ({text})")


def not_connected(error: BaseException, url: str, node: Node) -> BackendError:
    """The exception for a failed connect: nothing but the login and SELECT was sent."""
    text = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
    if _known(text) == "NOPERM":
        return AccessDenied(backend=url, problem=located(url, node, f"{_NOPERM} ({text})"))
    advice = _NOTHING_CHANGED.get(_known(text))
    return not_sent(url, node, f"{advice} ({text})" if advice else text)


def network_error(error: BaseException) -> BaseException:
    """The error of the network that the driver has wrapped; otherwise the error itself."""
    inner = error.__context__  # possibly an error that the caller handles, which the driver's text does not repeat
    return inner if isinstance(inner, OSError) and inner.strerror and inner.strerror in str(error) else error


def _unwrapped(text: str) -> str:
    wrapped = _WRAPPED.match(text)
    return _ADDED.sub("", wrapped[1] if wrapped else text)


def _known(text: str) -> str:
    code = text.partition(" ")[0]
    if code != "ERR" and (code in _NOTHING_CHANGED or code.isupper()):
        return code
    return next((words for words in _NOTHING_CHANGED if " " in words and words in text), code)
