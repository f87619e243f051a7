"""The Lua scripts that run on the server. Their texts are the .lua files of this package."""

from __future__ import annotations

from hashlib import sha1
from typing import NamedTuple

from holdfast.backends.texts import text_of
from holdfast.core.tickets import POLL_INTERVAL, WAITER_LEASE, WOKEN_LEASE

SILENT = 4.0  # seconds: a waiter that has not polled for this long is skipped when it is its turn
KEEP = 60.0  # seconds that a lock stays in the index after the end of its lease, so that most hand-overs need no write


class Script(NamedTuple):
    """A script, and the SHA-1 digest by which EVALSHA names it."""

    name: str
    text: str
    sha: str
    is_grant: bool  # it starts or extends a lease, or advances a register: `replicas=` applies to it

    @classmethod
    def of(cls, name: str, *texts: str, is_grant: bool = False) -> Script:
        text = "".join(texts)
        return cls(name, text, sha1(text.encode(), usedforsecurity=False).hexdigest(), is_grant)


def load(method: str, *parts: str, is_grant: bool = False) -> Script:
    """A script of `method`: these texts joined. The last one gives the script its name."""
    texts = (text(__package__, method, part) for part in parts)
    return Script.of(f"{method}/{parts[-1]}", CONSTANTS, *texts, is_grant=is_grant)


def load_all(method: str, *parts: str, keys: int) -> Script:
    """A script for several locks with this many keys each. It runs the script for one lock for each, in order."""
    step = "".join(text(__package__, method, part) for part in parts)
    loop = text(__package__, "try_acquire_all").replace("--[[ the script for one ]]\n", step)
    loop = loop.replace("--[[ keys of a lock ]]", str(keys))
    return Script.of(f"{method}/{parts[-1]}_all", CONSTANTS, loop, is_grant=True)


def text(package: str, *path: str) -> str:
    """A Lua text of that package."""
    return text_of(package, f"{'/'.join(path)}.lua")


# On one line, so that line numbers in error messages of the server are off by one only.
_CONSTANTS = {
    "WAITER_LEASE": WAITER_LEASE,
    "WOKEN_LEASE": WOKEN_LEASE,
    "POLL_INTERVAL": POLL_INTERVAL,
    "SILENT": SILENT,
    "KEEP": KEEP,
}
_MILLISECONDS = ", ".join(str(round(seconds * 1000)) for seconds in _CONSTANTS.values())
CONSTANTS = f"local {', '.join(_CONSTANTS)} = {_MILLISECONDS}\n"
