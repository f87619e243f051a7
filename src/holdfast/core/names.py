"""Checks of arguments. An error names the argument and the fix."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import timedelta
from typing import Any

from holdfast.errors import ConfigurationError

NAME_MAX = 512
ONCE_PREFIX = "holdfast:once:"  # of the locks of `once`; no other lock has such a name
LIMIT_MAX = 1_000_000
TTL_MIN = 0.1
TTL_MAX = 366 * 86400.0
LOCK_DELAY_MAX = 86400.0
GROUP_MAX = 100
OWNER_MAX = 255

Duration = float | str | timedelta  # seconds, or text such as "30s", "15m", "1h"
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}  # seconds

# Options of other libraries, and their names here.
_ELSEWHERE = {
    "blocking": "timeout=0 does not wait, and so does acquire(blocking=False)",
    "blocking_timeout": "`timeout` is how long to wait here (redis-py's `timeout` is `ttl` here)",
    "expire": "`ttl` is how long a lease lives without renewal",
    "lease_duration": "`ttl` is how long a lease lives without renewal",
    "lease_time": "`ttl` is how long a lease lives without renewal",
    "auto_release_time": "`ttl` is how long a lease lives without renewal",
    "auto_renewal": "leases are renewed automatically; renew=False turns it off",
    "max_leases": "`limit` is how many may hold a semaphore",
    "value": "`limit` is how many may hold a semaphore",
    "sleep": "waiters are woken, there is no poll interval",
    "retry_interval": "waiters are woken, there is no poll interval",
    "thread_local": "a lease belongs to the code that has the Lease object",
}


def shown(value: object) -> str:
    """repr() for a message, without the middle of a long text."""
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[: _SHOWN_MAX - 20]}…{text[-19:]}"


_SHOWN_MAX = 100


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint for a message: the nearest of the known words, or all of them."""
    import difflib

    words = list(known)
    close = difflib.get_close_matches(word, words, n=1)
    return f" (did you mean {close[0]!r}?)" if close else f" (known: {', '.join(words)})"


def check_name(name: object, argument: str = "name") -> str:
    """The name of a lock, or of an object with the same rules for names."""
    if not isinstance(name, str):
        decorator = 'once("key")' if argument == "key" else 'locked("name")'
        how = f"; @client.{decorator} is the decorator" if callable(name) else ""
        raise ConfigurationError(f"{argument} must be a str, not {type(name).__name__}: {shown(name)}{how}")
    if not name:
        raise ConfigurationError(f"{argument} must not be empty: it is the text that all its users agree on")
    if len(name) > NAME_MAX:
        raise ConfigurationError(
            f"{argument} has {len(name)} characters, at most {NAME_MAX} are allowed: use a digest of the long part"
        )
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise ConfigurationError(f"{argument} {name!r} is not valid Unicode text ({error.reason})") from None
    return name


def check_lock_name(name: object) -> str:
    """The name of a lock that a user acquires."""
    checked = check_name(name)
    if checked.startswith(ONCE_PREFIX):
        raise ConfigurationError(f"name must not begin with {ONCE_PREFIX!r}, as the locks of once() do: {shown(name)}")
    return checked


def check_prefix(prefix: object) -> str:
    if not isinstance(prefix, str):
        raise ConfigurationError(f"prefix must be a str, not {type(prefix).__name__}: {shown(prefix)}")
    return prefix


def check_fence(fence: object) -> int:
    if not isinstance(fence, int) or isinstance(fence, bool):
        raise ConfigurationError(f"fence must be a whole number, as `inspect` shows it, not {fence!r}")
    return fence


def check_duration(argument: str, value: object, otherwise: str = "") -> float:
    """A duration in seconds: of a number of seconds, a timedelta, or text with one unit, such as "30s" or "1.5h".

    `otherwise` names what else the argument may be, for the message.

    >>> check_duration("ttl", "15m"), check_duration("ttl", "500ms"), check_duration("ttl", 30)
    (900.0, 0.5, 30.0)
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            seconds = float(value)
        except OverflowError:
            seconds = math.inf
        if not math.isfinite(seconds):
            raise ConfigurationError(f"{argument} must be a finite number of seconds{otherwise}, not {shown(value)}")
        return seconds
    if isinstance(value, timedelta):
        return value.total_seconds()
    try:
        return _with_unit(value if isinstance(value, str) else "")
    except ValueError:
        raise ConfigurationError(
            f"{argument} must be a number of seconds, a timedelta or text like '30s', '15m' or '1h'{otherwise}, "
            f"not {shown(value)}"
        ) from None


def parse_duration(text: str) -> float:
    """The seconds of a duration in a URL or on a command line: text such as "30s", or a number of seconds.

    Raises:
        ValueError: it is neither.
    """
    try:
        return float(text)
    except ValueError:
        return _with_unit(text)


def _with_unit(text: str) -> float:
    parts = re.fullmatch(r"\s*([0-9]{1,9}(?:[.][0-9]{1,9})?)\s*(ms|[smhdw])\s*", text)
    if parts is None:
        raise ValueError(text)
    return round(float(parts[1]) * _UNITS[parts[2]], 9)  # without the error of a product such as 1.1 * 3600


def _check_between(argument: str, value: object, least: float, most: float, *, limits: str, meaning: str) -> float:
    """A duration in seconds, from `least` to `most`. For messages: `limits` as text, and what the argument means."""
    seconds = check_duration(argument, value)
    if not least <= seconds <= most:
        raise ConfigurationError(f"{argument} must be between {limits}, not {value!r}: {meaning}")
    return seconds


def check_ttl(ttl: object) -> float:
    return _check_between(
        "ttl",
        ttl,
        TTL_MIN,
        TTL_MAX,
        limits=f"{TTL_MIN} s and {TTL_MAX:.0f} s",
        meaning="it is how long a lease lives without renewal. It is renewed automatically, so a short ttl (the "
        "default is 30) serves long work too",
    )


def check_timeout(timeout: object) -> float | None:
    if timeout is None:
        return None
    seconds = check_duration("timeout", timeout, ", or None to wait forever")
    if seconds < 0:
        raise ConfigurationError(
            f"timeout must be 0 s or more, or None, not {timeout!r}: 0 does not wait, None waits forever"
        )
    return seconds


def check_every(every: object) -> float:
    seconds = check_duration("every", every)
    if seconds <= 0:
        raise ConfigurationError(
            f"every must be more than 0 s, not {every!r}: it is the time between two requests to the server"
        )
    return seconds


def check_limit(limit: object) -> int:
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= LIMIT_MAX:
        raise ConfigurationError(f"limit must be a whole number from 1 to {LIMIT_MAX:,}, not {limit!r}")
    return limit


def check_max_hold(max_hold: object) -> float | None:
    if max_hold is None:
        return None
    seconds = check_duration("max_hold", max_hold, ", or None for no limit")
    if seconds <= 0:
        raise ConfigurationError(f"max_hold must be more than 0 s, not {max_hold!r}; None means no limit")
    return seconds


def check_stop_margin(stop_margin: object, ttl: float) -> float:
    return _check_between(
        "stop_margin",
        stop_margin,
        0,
        ttl / 2,
        limits=f"0 and half the ttl ({ttl / 2:g} s)",
        meaning="a lease is renewed every third of its ttl and must not end before that",
    )


def check_lock_delay(lock_delay: object) -> float:
    return _check_between(
        "lock_delay",
        lock_delay,
        0,
        LOCK_DELAY_MAX,
        limits=f"0 and {LOCK_DELAY_MAX:g} s",
        meaning="for so long no client gets the lock after a lease was lost",
    )


def check_min_hold(min_hold: object, max_hold: float | None) -> float:
    seconds = _check_between(
        "min_hold",
        min_hold,
        0,
        TTL_MAX,
        limits=f"0 and {TTL_MAX:.0f} s",
        meaning="a release before that time keeps the others out until it is over",
    )
    if max_hold is not None and max_hold < seconds:
        raise ConfigurationError(
            f"min_hold={min_hold!r} is longer than max_hold={max_hold:g}: a lease would be lost before it may end"
        )
    return seconds


def check_within(within: object) -> float:
    return _check_between(
        "within",
        within,
        TTL_MIN,
        TTL_MAX,
        limits=f"{TTL_MIN} s and {TTL_MAX:.0f} s",
        meaning="it is the time in which another process can adopt the lease, and for which a lease that no process "
        "adopts blocks the lock",
    )


def check_owner(owner: object) -> str:
    if owner is None:
        return ""
    if not isinstance(owner, str) or not 0 < len(owner) <= OWNER_MAX:
        raise ConfigurationError(
            f"owner must be a name of 1 to {OWNER_MAX} characters that its processes agree on, not {shown(owner)}"
        )
    try:
        owner.encode()
    except UnicodeEncodeError as error:
        raise ConfigurationError(f"owner {owner!r} is not valid Unicode text ({error.reason})") from None
    return owner


def check_group(group: object) -> str:
    if group is None:
        return ""
    if not isinstance(group, str) or not 0 < len(group) <= GROUP_MAX or not group.isprintable():
        raise ConfigurationError(
            f"group must be a label of 1 to {GROUP_MAX} printable characters for metrics, not {shown(group)}"
        )
    return group


def check_on_revoke(on_revoke: object) -> Callable[..., object] | None:
    if on_revoke is None or callable(on_revoke):
        return on_revoke
    raise ConfigurationError(f"on_revoke must be a function that takes the lease, not {on_revoke!r}")


def check_subscriber(subscriber: object) -> None:
    if not callable(subscriber):
        raise ConfigurationError(f"subscriber must be a function that takes an Event, not {shown(subscriber)}")


def check_meta(meta: object) -> Mapping[str, Any]:
    if meta is None:
        return {}
    if not isinstance(meta, Mapping) or not all(isinstance(key, str) for key in meta):
        raise ConfigurationError(f"meta must be a dict with str keys that JSON can write, not {shown(meta)}")
    return meta


def check_on_lost(on_lost: object) -> str | Callable[..., object] | None:
    if on_lost is None or on_lost == "event":
        return "event" if on_lost else None
    if callable(on_lost):
        return on_lost
    raise ConfigurationError(f"on_lost must be None, 'event' or a function that takes the lease, not {on_lost!r}")


def check_flag(argument: str, flag: object, hint: str = "") -> bool:
    if not isinstance(flag, bool):
        raise ConfigurationError(f"{argument} must be True or False, not {flag!r}{hint}")
    return flag


def refuse_unknown(function: str, words: Iterable[str], known: Collection[str]) -> None:
    """Raise for a keyword that `function` does not take; the message names the one that was likely meant."""
    for word in words:
        if word not in known:
            hint = f": {_ELSEWHERE[word]}" if word in _ELSEWHERE else did_you_mean(word, known)
            raise ConfigurationError(f"{function}() takes no argument {word!r}{hint}")
