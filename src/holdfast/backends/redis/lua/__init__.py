"""The scripts that run inside the server: texts that lie beside this file, under the name by which it knows them."""

from __future__ import annotations

from hashlib import sha1
from importlib import resources
from typing import NamedTuple

from holdfast.core.tickets import POLL_INTERVAL, WAITER_LEASE, WOKEN_LEASE

SILENT = 4.0  # seconds: a waiter that has not polled for so long is not waited for when it is its turn
FENCE_IDLE = 3600.0  # seconds for which an unused lock's last fence is remembered; after that the clock is the floor


class Script(NamedTuple):
    """A text, and its digest in hexadecimal, which EVALSHA takes in its place."""

    name: str
    text: str
    sha: str
    is_grant: bool  # it starts or extends a lease, or advances a register: `replicas=` applies to it

    @classmethod
    def of(cls, name: str, *texts: str, is_grant: bool = False) -> Script:
        text = "".join(texts)
        return cls(name, text, sha1(text.encode(), usedforsecurity=False).hexdigest(), is_grant)


def load(method: str, *parts: str, is_grant: bool = False) -> Script:
    """A script of `method`, put together from these texts; the last one gives it its name."""
    texts = (text(__package__, method, part) for part in parts)
    return Script.of(f"{method}/{parts[-1]}", CONSTANTS, *texts, is_grant=is_grant)


def load_all(method: str, *parts: str) -> Script:
    """The script that these texts make for one lock, for several in turn."""
    step = "".join(text(__package__, method, part) for part in parts)
    loop = text(__package__, "try_acquire_all").replace("--[[ the script for one ]]\n", step)
    return Script.of(f"{method}/{parts[-1]}_all", CONSTANTS, loop, is_grant=True)


def text(package: str, *path: str) -> str:
    """A Lua text of that package."""
    return resources.files(package).joinpath(*path[:-1], f"{path[-1]}.lua").read_text()


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


# One line, so that line numbers in the server's messages are off by no more than that.
_CONSTANTS = {
    "WAITER_LEASE": WAITER_LEASE,
    "WOKEN_LEASE": WOKEN_LEASE,
    "POLL_INTERVAL": POLL_INTERVAL,
    "SILENT": SILENT,
    "FENCE_IDLE": FENCE_IDLE,
}
CONSTANTS = f"local {', '.join(_CONSTANTS)} = {', '.join(str(_ms(seconds)) for seconds in _CONSTANTS.values())}\n"
