"""Checks of what users pass in, each refused with the argument's name and the fix."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from holdfast.errors import ConfigurationError

NAME_MAX = 512
LIMIT_MAX = 1_000_000
TTL_MIN = 0.1
TTL_MAX = 366 * 86400.0
LOCK_DELAY_MAX = 86400.0
OWNER_MAX = 255

# What people know from other libraries, and what it is called here.
_ELSEWHERE = {
    "blocking": "timeout=0 does not wait, and so does acquire(blocking=False)",
    "blocking_timeout": "`timeout` is how long to wait here (redis-py's `timeout` is `ttl` here)",
    "expire": "`ttl` is how long a lease lives without renewal",
    "lease_duration": "`ttl` is how long a lease lives without renewal",
    "lease_time": "`ttl` is how long a lease lives without renewal",
    "auto_release_time": "`ttl` is how long a lease lives without renewal",
    "auto_renewal": "leases are renewed by themselves; renew=False turns it off",
    "max_leases": "`limit` is how many may hold a semaphore",
    "value": "`limit` is how many may hold a semaphore",
    "sleep": "waiters are woken, there is no poll interval",
    "retry_interval": "waiters are woken, there is no poll interval",
    "thread_local": "a lease belongs to whoever has the Lease object",
}


def check_name(name: object) -> str:
    if not isinstance(name, str):
        raise ConfigurationError(f"name must be a str, not {type(name).__name__}: {name!r}")
    if not name:
        raise ConfigurationError("name must not be empty: every lock needs a name that its users agree on")
    if len(name) > NAME_MAX:
        raise ConfigurationError(
            f"name has {len(name)} characters, at most {NAME_MAX} are allowed: use a digest of the long part"
        )
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise ConfigurationError(f"name {name!r} is not valid Unicode text ({error.reason})") from None
    return name


def check_prefix(prefix: object) -> str:
    if not isinstance(prefix, str):
        raise ConfigurationError(f"prefix must be a str, not {type(prefix).__name__}: {prefix!r}")
    return prefix


def check_fence(fence: object) -> int:
    if not isinstance(fence, int) or isinstance(fence, bool):
        raise ConfigurationError(f"fence must be a whole number, as `inspect` shows it, not {fence!r}")
    return fence


def check_ttl(ttl: object) -> float:
    seconds = _number("ttl", ttl, "seconds")
    if not TTL_MIN <= seconds <= TTL_MAX:
        raise ConfigurationError(
            f"ttl must be between {TTL_MIN} s and {TTL_MAX:.0f} s, not {ttl!r}: it is how long a lease lives without "
            "renewal, and it is renewed by itself, so a short one (the default is 30) serves long work too"
        )
    return seconds


def check_timeout(timeout: object) -> float | None:
    if timeout is None:
        return None
    seconds = _number("timeout", timeout, "seconds, or None to wait for ever")
    if seconds < 0:
        raise ConfigurationError(f"timeout must not be negative, not {timeout!r}: 0 does not wait, None waits for ever")
    return seconds


def check_blocking(blocking: object) -> None:
    if not isinstance(blocking, bool):
        raise ConfigurationError(f"blocking must be True or False, not {blocking!r}: timeout= is how long to wait")


def check_every(every: object) -> float:
    seconds = _number("every", every, "seconds")
    if seconds <= 0:
        raise ConfigurationError(f"every must be more than 0 s, not {every!r}: it is the time between two looks")
    return seconds


def check_limit(limit: object) -> int:
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= LIMIT_MAX:
        raise ConfigurationError(f"limit must be a whole number from 1 to {LIMIT_MAX:,}, not {limit!r}")
    return limit


def check_max_hold(max_hold: object) -> float | None:
    if max_hold is None:
        return None
    seconds = _number("max_hold", max_hold, "seconds, or None for no limit")
    if seconds <= 0:
        raise ConfigurationError(f"max_hold must be more than 0 s, not {max_hold!r}; None means no limit")
    return seconds


def check_stop_margin(stop_margin: object, ttl: float) -> float:
    seconds = _number("stop_margin", stop_margin, "seconds")
    if not 0 <= seconds <= ttl / 2:
        raise ConfigurationError(
            f"stop_margin must be between 0 and half the ttl ({ttl / 2:g} s), not {stop_margin!r}: "
            "a lease is renewed every third of its ttl and must not be given up before that"
        )
    return seconds


def check_lock_delay(lock_delay: object) -> float:
    seconds = _number("lock_delay", lock_delay, "seconds")
    if not 0 <= seconds <= LOCK_DELAY_MAX:
        raise ConfigurationError(
            f"lock_delay must be between 0 and {LOCK_DELAY_MAX:g} s, not {lock_delay!r}: for so long nobody gets the "
            "lock after a lease was lost"
        )
    return seconds


def check_owner(owner: object) -> str:
    if owner is None:
        return ""
    if not isinstance(owner, str) or not 0 < len(owner) <= OWNER_MAX:
        raise ConfigurationError(
            f"owner must be a name of 1 to {OWNER_MAX} characters that its processes agree on, not {owner!r}"
        )
    try:
        owner.encode()
    except UnicodeEncodeError as error:
        raise ConfigurationError(f"owner {owner!r} is not valid Unicode text ({error.reason})") from None
    return owner


def check_on_revoke(on_revoke: object) -> Callable[..., object] | None:
    if on_revoke is None or callable(on_revoke):
        return on_revoke
    raise ConfigurationError(f"on_revoke must be a function that takes the lease, not {on_revoke!r}")


def check_meta(meta: object) -> Mapping[str, Any]:
    if meta is None:
        return {}
    if not isinstance(meta, Mapping) or not all(isinstance(key, str) for key in meta):
        raise ConfigurationError(f"meta must be a dict with str keys that JSON can write, not {meta!r}")
    return meta


def check_on_lost(on_lost: object) -> str | Callable[..., object] | None:
    if on_lost is None or on_lost == "event":
        return "event" if on_lost else None
    if callable(on_lost):
        return on_lost
    raise ConfigurationError(f"on_lost must be None, 'event' or a function that takes the lease, not {on_lost!r}")


def check_flag(argument: str, flag: object) -> bool:
    if not isinstance(flag, bool):
        raise ConfigurationError(f"{argument} must be True or False, not {flag!r}")
    return flag


def refuse_unknown(function: str, unknown: Iterable[str]) -> None:
    """Raise for keywords that `function` does not take, with a hint where another library's word was used."""
    for word in unknown:
        hint = _ELSEWHERE.get(word)
        raise ConfigurationError(f"{function}() takes no argument {word!r}" + (f": {hint}" if hint else ""))


def _number(argument: str, value: object, unit: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationError(f"{argument} must be a number of {unit}, not {value!r}")
    try:
        seconds = float(value)
    except OverflowError:
        seconds = float("inf")
    if not math.isfinite(seconds):
        raise ConfigurationError(f"{argument} must be a finite number of {unit}, not {value!r}")
    return seconds
