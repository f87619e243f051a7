"""Hazard: bad input that is accepted, or refused with a message that names neither the argument nor the fix.

Tables for all input: arguments in Python, URLs and their options, guards, the command line, environment variables. Each
case has the whole message. No case takes a lock, makes a file or starts a thread, and none shows a password ("s3cret").
"""

# ruff: noqa: E501, FBT003 - a case is one line, with its message; and True is bad input, too

from __future__ import annotations

import asyncio
import contextlib
import inspect
import io
import os
import re
import shlex
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli import main
from holdfast.fencing import files, redis, sql
from holdfast.url import SCHEMES, Scheme

HUGE = 10**400
SCHEMES_KNOWN = ", ".join(f"{scheme}://" for scheme in SCHEMES)
OPTIONS = ", ".join(holdfast.LockOptions.__annotations__)
SQLiteGuard: Any = sql.SQLiteGuard  # which has types that refuse some of the cases
RedisGuard: Any = redis.RedisGuard
replace: Any = files.replace
REDIS = type("Client", (), {"eval": None})  # with the attribute that a guard checks for


def work_of(client: Any) -> Any:
    """A function that this client can decorate."""

    def work(day: str, second: int = 1, third: int = 2) -> None: ...

    async def awaited(day: str, second: int = 1, third: int = 2) -> None: ...

    awaited.__qualname__ = work.__qualname__ = "work"
    return work if isinstance(client, holdfast.Client) else awaited


def generator() -> Iterator[int]:
    yield 1


# fmt: off
ARGUMENTS: list[Any] = [
    # names
    (lambda client: client.lock(""), "name must not be empty: it is the text that all its users agree on"),
    (lambda client: client.lock("x" * 513), "name has 513 characters, at most 512 are allowed: use a digest of the long part"),
    (lambda client: client.lock(b"bytes"), "name must be a str, not bytes: b'bytes'"),
    (lambda client: client.lock(None), "name must be a str, not NoneType: None"),
    (lambda client: client.lock(print), 'name must be a str, not builtin_function_or_method: <built-in function print>; @client.locked("name") is the decorator'),
    (lambda client: client.rwlock(7), "name must be a str, not int: 7"),
    (lambda client: client.semaphore("\ud800", 2), "name '\\ud800' is not valid Unicode text (surrogates not allowed)"),
    (lambda client: client.election(["a"]), "name must be a str, not list: ['a']"),
    (lambda client: client.inspect(""), "name must not be empty: it is the text that all its users agree on"),
    (lambda client: client.locks(b"a"), "prefix must be a str, not bytes: b'a'"),
    (lambda client: client.locks(None), "prefix must be a str, not NoneType: None"),
    (lambda client: client.locks(True), "prefix must be a str, not bool: True"),
    # ttl, timeout, blocking
    (lambda client: client.lock("a", ttl=0), "ttl must be between 0.1 s and 31622400 s, not 0: it is how long a lease lives without renewal. It is renewed automatically, so a short ttl (the default is 30) serves long work too"),
    (lambda client: client.lock("a", ttl=-1), "ttl must be between 0.1 s and 31622400 s, not -1: it is how long a lease lives without renewal. It is renewed automatically, so a short ttl (the default is 30) serves long work too"),
    (lambda client: client.lock("a", ttl=0.01), "ttl must be between 0.1 s and 31622400 s, not 0.01: it is how long a lease lives without renewal. It is renewed automatically, so a short ttl (the default is 30) serves long work too"),
    (lambda client: client.lock("a", ttl=1e12), "ttl must be between 0.1 s and 31622400 s, not 1000000000000.0: it is how long a lease lives without renewal. It is renewed automatically, so a short ttl (the default is 30) serves long work too"),
    (lambda client: client.lock("a", ttl=float("nan")), "ttl must be a finite number of seconds, not nan"),
    (lambda client: client.lock("a", ttl=float("inf")), "ttl must be a finite number of seconds, not inf"),
    (lambda client: client.lock("a", ttl=HUGE), "ttl must be a finite number of seconds, not 10000000000000000000000000000000000000000000000000000000000000000000000000000000…0000000000000000000"),
    (lambda client: client.lock("a", ttl="30"), "ttl must be a number of seconds, a timedelta or text like '30s', '15m' or '1h', not '30'"),
    (lambda client: client.lock("a", ttl="1h30m"), "ttl must be a number of seconds, a timedelta or text like '30s', '15m' or '1h', not '1h30m'"),
    (lambda client: client.lock("a", ttl="-5s"), "ttl must be a number of seconds, a timedelta or text like '30s', '15m' or '1h', not '-5s'"),
    (lambda client: client.lock("a", ttl="1e3s"), "ttl must be a number of seconds, a timedelta or text like '30s', '15m' or '1h', not '1e3s'"),
    (lambda client: client.lock("a", ttl="5S"), "ttl must be a number of seconds, a timedelta or text like '30s', '15m' or '1h', not '5S'"),
    (lambda client: client.lock("a", ttl="99ms"), "ttl must be between 0.1 s and 31622400 s, not '99ms': it is how long a lease lives without renewal. It is renewed automatically, so a short ttl (the default is 30) serves long work too"),
    (lambda client: client.lock("a", ttl=True), "ttl must be a number of seconds, a timedelta or text like '30s', '15m' or '1h', not True"),
    (lambda client: type(client)("memory://", ttl=0), "ttl must be between 0.1 s and 31622400 s, not 0: it is how long a lease lives without renewal. It is renewed automatically, so a short ttl (the default is 30) serves long work too"),
    (lambda client: type(client)("memory://", ttl="30"), "ttl must be a number of seconds, a timedelta or text like '30s', '15m' or '1h', not '30'"),
    (lambda client: type(client)("memory://", ttl=None), "ttl must be a number of seconds, a timedelta or text like '30s', '15m' or '1h', not None"),
    (lambda client: client.lock("a", timeout=-1), "timeout must be 0 s or more, or None, not -1: 0 does not wait, None waits forever"),
    (lambda client: client.lock("a", timeout=float("nan")), "timeout must be a finite number of seconds, or None to wait forever, not nan"),
    (lambda client: client.lock("a", timeout=float("inf")), "timeout must be a finite number of seconds, or None to wait forever, not inf"),
    (lambda client: client.lock("a", timeout="5"), "timeout must be a number of seconds, a timedelta or text like '30s', '15m' or '1h', or None to wait forever, not '5'"),
    (lambda client: client.lock("a", timeout=False), "timeout must be a number of seconds, a timedelta or text like '30s', '15m' or '1h', or None to wait forever, not False"),
    (lambda client: client.lock("a", timeout=HUGE), "timeout must be a finite number of seconds, or None to wait forever, not 10000000000000000000000000000000000000000000000000000000000000000000000000000000…0000000000000000000"),
    (lambda client: client.lock("a").acquire(timeout=-1), "timeout must be 0 s or more, or None, not -1: 0 does not wait, None waits forever"),
    (lambda client: client.lock("a").acquire(timeout="5"), "timeout must be a number of seconds, a timedelta or text like '30s', '15m' or '1h', or None to wait forever, not '5'"),
    (lambda client: client.lock("a").acquire(5), "blocking must be True or False, not 5: timeout= is how long to wait"),
    (lambda client: client.lock("a").acquire(blocking=None), "blocking must be True or False, not None: timeout= is how long to wait"),
    (lambda client: client.lock("a").acquire(blocking=False, timeout=5), "blocking=False does not wait: give either blocking or timeout"),
    (lambda client: client.lock("a").acquire(blocking_timeout=5), "acquire() takes no argument 'blocking_timeout': `timeout` is how long to wait here (redis-py's `timeout` is `ttl` here)"),
    (lambda client: client.lock("a").acquire(holder="x"), "acquire() takes no argument 'holder' (known: blocking, timeout)"),
    (lambda client: client.lock_all(["a"]).acquire(sleep=1), "acquire() takes no argument 'sleep': waiters are woken, there is no poll interval"),
    (lambda client: client.lock_all(["a"]).acquire(blocking=1), "blocking must be True or False, not 1: timeout= is how long to wait"),
    (lambda client: client.semaphore("a", 2).acquire(timeot=1), "acquire() takes no argument 'timeot' (did you mean 'timeout'?)"),
    (lambda client: client.rwlock("a").read().acquire(wait=1), "acquire() takes no argument 'wait' (known: blocking, timeout)"),
    (lambda client: client.election("a").campaign(blocking=False, timeout=0), "blocking=False does not wait: give either blocking or timeout"),
    (lambda client: client.election("a").campaign(timeout=-1), "timeout must be 0 s or more, or None, not -1: 0 does not wait, None waits forever"),
    (lambda client: client.election("a").campaign(blocking_timeout=5), "campaign() takes no argument 'blocking_timeout': `timeout` is how long to wait here (redis-py's `timeout` is `ttl` here)"),
    # other options of a lock
    (lambda client: client.semaphore("a", 0), "limit must be a whole number from 1 to 1,000,000, not 0"),
    (lambda client: client.semaphore("a", -1), "limit must be a whole number from 1 to 1,000,000, not -1"),
    (lambda client: client.semaphore("a", 1.5), "limit must be a whole number from 1 to 1,000,000, not 1.5"),
    (lambda client: client.semaphore("a", "3"), "limit must be a whole number from 1 to 1,000,000, not '3'"),
    (lambda client: client.semaphore("a", True), "limit must be a whole number from 1 to 1,000,000, not True"),
    (lambda client: client.semaphore("a", None), "limit must be a whole number from 1 to 1,000,000, not None"),
    (lambda client: client.semaphore("a", 10**7), "limit must be a whole number from 1 to 1,000,000, not 10000000"),
    (lambda client: client.lock("a", max_hold=0), "max_hold must be more than 0 s, not 0; None means no limit"),
    (lambda client: client.lock("a", max_hold=-3), "max_hold must be more than 0 s, not -3; None means no limit"),
    (lambda client: client.lock("a", max_hold="1 hour"), "max_hold must be a number of seconds, a timedelta or text like '30s', '15m' or '1h', or None for no limit, not '1 hour'"),
    (lambda client: client.lock("a", max_hold=float("inf")), "max_hold must be a finite number of seconds, or None for no limit, not inf"),
    (lambda client: client.lock("a", stop_margin=-1), "stop_margin must be between 0 and half the ttl (15 s), not -1: a lease is renewed every third of its ttl and must not end before that"),
    (lambda client: client.lock("a", stop_margin=16), "stop_margin must be between 0 and half the ttl (15 s), not 16: a lease is renewed every third of its ttl and must not end before that"),
    (lambda client: client.lock("a", stop_margin=None), "stop_margin must be a number of seconds, a timedelta or text like '30s', '15m' or '1h', not None"),
    (lambda client: client.lock("a", meta=["a"]), "meta must be a dict with str keys that JSON can write, not ['a']"),
    (lambda client: client.lock("a", meta={1: 2}), "meta must be a dict with str keys that JSON can write, not {1: 2}"),
    (lambda client: client.lock("a", meta={"a": object}), re.compile("meta must be JSON data: .*")),
    (lambda client: client.lock("a", meta={"a": float("nan")}), re.compile("meta must be JSON data: .*")),
    (lambda client: client.lock("a", on_lost="raise"), "on_lost must be None, 'event' or a function that takes the lease, not 'raise'"),
    (lambda client: client.lock("a", on_lost=1), "on_lost must be None, 'event' or a function that takes the lease, not 1"),
    (lambda client: client.lock("a", reentrant=1), "reentrant must be True or False, not 1"),
    (lambda client: client.lock("a", renew=None), "renew must be True or False, not None"),
    (lambda client: client.lock("a", lock_delay=-1), "lock_delay must be between 0 and 86400 s, not -1: for so long no client gets the lock after a lease was lost"),
    (lambda client: client.lock("a", lock_delay=86401), "lock_delay must be between 0 and 86400 s, not 86401: for so long no client gets the lock after a lease was lost"),
    (lambda client: client.lock("a", lock_delay="5"), "lock_delay must be a number of seconds, a timedelta or text like '30s', '15m' or '1h', not '5'"),
    (lambda client: client.lock("a", lock_delay=None), "lock_delay must be a number of seconds, a timedelta or text like '30s', '15m' or '1h', not None"),
    (lambda client: client.lock("a", owner=""), "owner must be a name of 1 to 255 characters that its processes agree on, not ''"),
    (lambda client: client.lock("a", owner="x" * 256), "owner must be a name of 1 to 255 characters that its processes agree on, not 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…xxxxxxxxxxxxxxxxxx'"),
    (lambda client: client.lock("a", owner=7), "owner must be a name of 1 to 255 characters that its processes agree on, not 7"),
    (lambda client: client.lock("a", owner="\ud800"), "owner '\\ud800' is not valid Unicode text (surrogates not allowed)"),
    (lambda client: client.lock("a", group=""), "group must be a label of 1 to 100 printable characters for metrics, not ''"),
    (lambda client: client.lock("a", group=7), "group must be a label of 1 to 100 printable characters for metrics, not 7"),
    (lambda client: client.lock("a", group="a\nb"), "group must be a label of 1 to 100 printable characters for metrics, not 'a\\nb'"),
    (lambda client: client.lock("a", owner="job", reentrant=True), "owner excludes reentrant=True: callers with the same owner hold the lock together"),
    (lambda client: client.rwlock("a", owner="job"), "rwlock() takes no owner: only lock() and lock_all() have named owners"),
    (lambda client: client.semaphore("a", 2, owner="job"), "semaphore() takes no owner: only lock() and lock_all() have named owners"),
    (lambda client: client.election("a", owner="job"), "election() takes no owner: only lock() and lock_all() have named owners"),
    (lambda client: client.lock("a", revocable=1), "revocable must be True or False, not 1"),
    (lambda client: client.lock("a", revocable=True, renew=False), "revocable needs renew=True: requests are polled when the lease is renewed"),
    (lambda client: client.lock("a", on_revoke="event"), "on_revoke must be a function that takes the lease, not 'event'"),
    (lambda client: client.lock("a", on_revoke=print, renew=False), "revocable needs renew=True: requests are polled when the lease is renewed"),
    (lambda client: client.lock("a", on_revoke=print, revocable=False), "on_revoke is never called with revocable=False: remove one of them"),
    (lambda client: client.lock("a", detect_deadlocks="yes"), "detect_deadlocks must be True or False, not 'yes'"),
    (lambda client: client.semaphore("a", 2, detect_deadlocks=True), "semaphore() takes no detect_deadlocks: only lock(), rwlock() and lock_all() do"),
    (lambda client: client.election("a", detect_deadlocks=True), "election() takes no detect_deadlocks: only lock(), rwlock() and lock_all() do"),
    # keywords of other libraries, and typos
    (lambda client: client.lock("a", blocking=False), "lock() takes no argument 'blocking': timeout=0 does not wait, and so does acquire(blocking=False)"),
    (lambda client: client.lock("a", blocking_timeout=5), "lock() takes no argument 'blocking_timeout': `timeout` is how long to wait here (redis-py's `timeout` is `ttl` here)"),
    (lambda client: client.lock("a", expire=5), "lock() takes no argument 'expire': `ttl` is how long a lease lives without renewal"),
    (lambda client: client.lock("a", lease_time=5), "lock() takes no argument 'lease_time': `ttl` is how long a lease lives without renewal"),
    (lambda client: client.lock("a", auto_renewal=True), "lock() takes no argument 'auto_renewal': leases are renewed automatically; renew=False turns it off"),
    (lambda client: client.lock("a", thread_local=False), "lock() takes no argument 'thread_local': a lease belongs to the code that has the Lease object"),
    (lambda client: client.lock("a", sleep=0.1), "lock() takes no argument 'sleep': waiters are woken, there is no poll interval"),
    (lambda client: client.lock("a", tll=5), "lock() takes no argument 'tll' (did you mean 'ttl'?)"),
    (lambda client: client.lock("a", timout=5), "lock() takes no argument 'timout' (did you mean 'timeout'?)"),
    (lambda client: client.lock("a", colour="red"), f"lock() takes no argument 'colour' (known: {OPTIONS})"),
    (lambda client: client.lock("a", 30), "BaseClient.lock() takes 2 positional arguments but 3 were given", TypeError),
    (lambda client: client.rwlock("a", reentrent=True), "rwlock() takes no argument 'reentrent' (did you mean 'reentrant'?)"),
    (lambda client: client.semaphore("a", 2, value=3), "semaphore() takes no argument 'value': `limit` is how many may hold a semaphore"),
    (lambda client: client.semaphore("a", 2, max_leases=3), "semaphore() takes no argument 'max_leases': `limit` is how many may hold a semaphore"),
    (lambda client: client.semaphore("a"), "BaseClient.semaphore() missing 1 required positional argument: 'limit'", TypeError),
    (lambda client: client.election("a", lease_duration=5), "election() takes no argument 'lease_duration': `ttl` is how long a lease lives without renewal"),
    (lambda client: client.lock_all(["a"], reentrant=True), "lock_all() takes no argument 'reentrant' (known: ttl, timeout, renew, max_hold, stop_margin, meta, on_lost, lock_delay, owner, revocable, on_revoke, detect_deadlocks, min_hold, group)"),
    (lambda client: client.lock_all(["a"], expire=5), "lock_all() takes no argument 'expire': `ttl` is how long a lease lives without renewal"),
    # several locks
    (lambda client: client.lock_all("abc"), "lock_all() takes a list of names: ['abc'], or use lock()"),
    (lambda client: client.lock_all([]), "lock_all() needs at least one name"),
    (lambda client: client.lock_all([""]), "name must not be empty: it is the text that all its users agree on"),
    (lambda client: client.lock_all(["a", "x" * 513]), "name has 513 characters, at most 512 are allowed: use a digest of the long part"),
    (lambda client: client.lock_all([7]), "lock_all() takes names and exclusive locks (client.lock, client.rwlock(…).write()), not 7"),
    (lambda client: client.lock_all([None]), "lock_all() takes names and exclusive locks (client.lock, client.rwlock(…).write()), not None"),
    (lambda client: client.lock_all(7), "lock_all() takes a list of names and locks, not 7"),
    (lambda client: client.lock_all(None), "lock_all() takes a list of names and locks, not None"),
    (lambda client: client.lock_all(["a", client.semaphore("b", 2)]), "lock_all() takes names and exclusive locks (client.lock, client.rwlock(…).write()), not <Semaphore 'b' ttl=30>"),
    (lambda client: client.lock_all(["a", client.rwlock("b")]), "lock_all() takes names and exclusive locks (client.lock, client.rwlock(…).write()), not <RWLock 'b'>"),
    (lambda client: client.lock_all(["a", client.rwlock("b").read()]), "lock_all() takes names and exclusive locks (client.lock, client.rwlock(…).write()), not <Lock 'b' ttl=30>"),
    (lambda client: client.lock_all(["a"], ttl=0), "ttl must be between 0.1 s and 31622400 s, not 0: it is how long a lease lives without renewal. It is renewed automatically, so a short ttl (the default is 30) serves long work too"),
    (lambda client: client.lock_all(["a"], timeout=-1), "timeout must be 0 s or more, or None, not -1: 0 does not wait, None waits forever"),
    (lambda client: client.lock_all(["a"], on_lost="raise"), "on_lost must be None, 'event' or a function that takes the lease, not 'raise'"),
    # decorators
    (lambda client: client.locked(work_of(client)), 'locked needs the name of a lock: write @client.locked("name") above work(); a function that returns the name is given as name_of=', TypeError),
    (lambda client: client.locked(), "locked() needs either the name or name_of=, a function that returns it"),
    (lambda client: client.locked("a", name_of=work_of(client)), "locked() needs either the name or name_of=, a function that returns it"),
    (lambda client: client.locked(name_of="a"), "name_of must be a function that returns the name, not 'a': text is the name"),
    (lambda client: client.locked(""), "name must not be empty: it is the text that all its users agree on"),
    (lambda client: client.locked(7), "name must be a str, not int: 7"),
    (lambda client: client.locked("a", busy="ignore"), "busy must be 'wait', 'skip' or 'raise', not 'ignore'"),
    (lambda client: client.locked("a", busy="raise", timeout=5), "busy='raise' does not wait: leave timeout out, or wait that long with busy='wait'"),
    (lambda client: client.locked("a", busy="skip", timeout=None), "busy='skip' would never skip with timeout=None: give seconds, or leave timeout out"),
    (lambda client: client.locked("a", skipped=0), "skipped is what a call returns with busy='skip': give both, or none"),
    (lambda client: client.locked("a", lease=7), "lease must be the name of a parameter, or None, not 7"),
    (lambda client: client.locked("a", lease="leese")(work_of(client)), "lease='leese' must name the first parameter of work(), the one behind self, or one behind a *: def f(leese, …), def f(self, leese, …) or def f(…, *, leese)"),
    (lambda client: client.locked("a", lease="third")(work_of(client)), "lease='third' must name the first parameter of work(), the one behind self, or one behind a *: def f(third, …), def f(self, third, …) or def f(…, *, third)"),
    (lambda client: client.locked("a", ttl=-1), "ttl must be between 0.1 s and 31622400 s, not -1: it is how long a lease lives without renewal. It is renewed automatically, so a short ttl (the default is 30) serves long work too"),
    (lambda client: client.locked("a", bussy="skip"), "locked() takes no argument 'bussy' (did you mean 'busy'?)"),
    (lambda client: client.locked("{}")(work_of(client)), "name has the field '': write the name of a parameter, with .attribute or [key] behind it if need be"),
    (lambda client: client.locked("{0}")(work_of(client)), "name has the field '0': write the name of a parameter, with .attribute or [key] behind it if need be"),
    (lambda client: client.locked("{dya}")(work_of(client)), "name '{dya}' has the field 'dya', and work() has no such parameter (it has: day, second, third)"),
    (lambda client: client.locked("{day!x}")(work_of(client)), "name has the unknown conversion '!x': there are !s, !r and !a"),
    (lambda client: client.locked("{da")(work_of(client)), "name '{da' cannot be read as a format: expected '}' before end of string; write {{ and }} for braces that belong to the name"),
    (lambda client: client.locked("}")(work_of(client)), "name '}' cannot be read as a format: Single '}' encountered in format string; write {{ and }} for braces that belong to the name"),
    (lambda client: client.locked("{day.__class__}")(work_of(client)), "name has the field 'day.__class__': what begins with _ is private; name_of= can use it"),
    (lambda client: client.locked("{day.year._x}")(work_of(client)), "name has the field 'day.year._x': what begins with _ is private; name_of= can use it"),
    (lambda client: client.locked("{_day}")(work_of(client)), "name has the field '_day': what begins with _ is private; name_of= can use it"),
    (lambda client: client.locked("{day.}")(work_of(client)), "name has the field 'day.': write the name of a parameter, with .attribute or [key] behind it if need be"),
    (lambda client: client.locked("{day:{day}}")(work_of(client)), "name has a field within the format of the field 'day': name_of= can compute it"),
    (lambda client: client.locked("{day()}")(work_of(client)), "name has the field 'day()': write the name of a parameter, with .attribute or [key] behind it if need be"),
    (lambda client: client.locked("a")(generator), "generator() is a generator, whose body runs after the call: take it inside, with `with` on the lock of a Client"),
    (lambda client: client.locked("a")(staticmethod(work_of(client))), "locked must stand below @staticmethod, next to the function: put @staticmethod above it"),
    (lambda client: client.locked("a")(int), "locked is for functions and methods, not for <class 'int'>: @client.locked(\"name\") above a function"),
    (lambda client: client.locked("a")("monday"), "locked is for functions and methods, not for 'monday': @client.locked(\"name\") above a function"),
    (lambda client: client.once_per(work_of(client)), "Client.once_per() missing 1 required keyword-only argument: 'name'", TypeError),
    (lambda client: client.once_per("15", name="job"), "period must be a number of seconds, a timedelta or text like '30s', '15m' or '1h', not '15'"),
    (lambda client: client.once_per("15 minutes", name="job"), "period must be a number of seconds, a timedelta or text like '30s', '15m' or '1h', not '15 minutes'"),
    (lambda client: client.once_per("1.5s", name="job"), "period must be whole seconds, not '1.5s'"),
    (lambda client: client.once_per("-15m", name="job"), "period must be a number of seconds, a timedelta or text like '30s', '15m' or '1h', not '-15m'"),
    (lambda client: client.once_per("0s", name="job"), "period must be between 1 s and 366 days, not '0s'"),
    (lambda client: client.once_per("53w", name="job"), "period must be between 1 s and 366 days, not '53w'"),
    (lambda client: client.once_per("", name="job"), "period must be a number of seconds, a timedelta or text like '30s', '15m' or '1h', not ''"),
    (lambda client: client.once_per("1y", name="job"), "period must be a number of seconds, a timedelta or text like '30s', '15m' or '1h', not '1y'"),
    (lambda client: client.once_per("9" * 5000 + "d", name="job"), "period must be a number of seconds, a timedelta or text like '30s', '15m' or '1h', not '9999999999999999999999999999999999999999999999999999999999999999999999999999999…99999999999999999d'"),
    (lambda client: client.once_per(HUGE, name="job"), "period must be a finite number of seconds, not 10000000000000000000000000000000000000000000000000000000000000000000000000000000…0000000000000000000"),
    (lambda client: client.once_per(0.5, name="job"), "period must be whole seconds, not 0.5"),
    (lambda client: client.once_per(timedelta(milliseconds=1500), name="job"), "period must be whole seconds, not datetime.timedelta(seconds=1, microseconds=500000)"),
    (lambda client: client.once_per(float("nan"), name="job"), "period must be a finite number of seconds, not nan"),
    (lambda client: client.once_per(None, name="job"), "period must be a number of seconds, a timedelta or text like '30s', '15m' or '1h', not None"),
    (lambda client: client.once_per(True, name="job"), "period must be a number of seconds, a timedelta or text like '30s', '15m' or '1h', not True"),
    (lambda client: client.once_per("1h", name="job", offset="1h"), "offset must be 0 or more and less than the period, not '1h'"),
    (lambda client: client.once_per("1h", name="job", offset=-1), "offset must be 0 or more and less than the period, not -1"),
    (lambda client: client.once_per("1h", name="job", offset="-5m"), "offset must be a number of seconds, a timedelta or text like '30s', '15m' or '1h', not '-5m'"),
    (lambda client: client.once_per("1h", name="job", offset=None), "offset must be a number of seconds, a timedelta or text like '30s', '15m' or '1h', not None"),
    (lambda client: client.once_per("15m", name=""), "name must not be empty: it is the text that all its users agree on"),
    (lambda client: client.once_per("15m", name=7), "name must be a str, not int: 7"),
    (lambda client: client.once_per("15m", name="job", lease=7), "lease must be the name of a parameter, or None, not 7"),
    (lambda client: client.once_per("15m", name="job", busy="skip"), f"once_per() takes no argument 'busy' (known: offset, skipped, lease, {OPTIONS})"),
    (lambda client: client.once_per("15m", name="job", timeout=None), "once_per() would never skip with timeout=None: give seconds, or leave timeout out"),
    # keys
    (lambda client: client.once(7), "key must be a str, not int: 7"),
    (lambda client: client.once(print), 'key must be a str, not builtin_function_or_method: <built-in function print>; @client.once("key") is the decorator'),
    (lambda client: client.once(""), "key must not be empty: it is the text that all its users agree on"),
    (lambda client: client.once("x" * 499), "key has 499 characters, at most 498 are allowed: use a digest of the long part"),
    (lambda client: client.once("a", retention=0), "retention must be between 0.1 s and 366 days, not 0: it is how long a completed run is remembered"),
    (lambda client: client.once("a", retention="53w"), "retention must be between 0.1 s and 366 days, not '53w': it is how long a completed run is remembered"),
    (lambda client: client.once("a", retention="one day"), "retention must be a number of seconds, a timedelta or text like '30s', '15m' or '1h', not 'one day'"),
    (lambda client: client.once("a", result="json"), "result must be True or False, not 'json'"),
    (lambda client: client.once("a", check=7), "check must be text that calls with the same key agree on, not 7"),
    (lambda client: client.once("a", busy="ignore"), "busy must be 'wait', 'skip' or 'raise', not 'ignore'"),
    (lambda client: client.once("a", after_error="raise"), "after_error must be 'retry' or 'remember', not 'raise'"),
    (lambda client: client.once("a", after_crash="remember"), "after_crash must be 'raise', 'retry' or 'skip', not 'remember'"),
    (lambda client: client.once("a", busy="raise", timeout=5), "busy='raise' does not wait: leave timeout out, or wait that long with busy='wait'"),
    (lambda client: client.once("a", busy="skip", timeout=None), "busy='skip' would never skip with timeout=None: give seconds, or leave timeout out"),
    (lambda client: client.once("a", lease=7), "lease must be the name of a parameter, or None, not 7"),
    (lambda client: client.once("a", max_hold="60w"), "max_hold must be at most 366 days for once(), not '60w'"),
    (lambda client: client.once("a", reentrant=True), "once() takes no argument 'reentrant' (did you mean 'retention'?)"),
    (lambda client: client.once("{dya}")(work_of(client)), "key '{dya}' has the field 'dya', and work() has no such parameter (it has: day, second, third)"),
    (lambda client: client.once("a", check="{dya}")(work_of(client)), "check '{dya}' has the field 'dya', and work() has no such parameter (it has: day, second, third)"),
    (lambda client: client.once("a")(7), 'once is for functions and methods, not for 7: @client.once("key") above a function'),
    (lambda client: client.lock("holdfast:once:a"), "name must not begin with 'holdfast:once:', as the locks of once() do: 'holdfast:once:a'"),
    (lambda client: client.forget("a", fence="7"), "fence must be a whole number, as `inspect` shows it, not '7'"),
    (lambda client: client.forget(7, fence=7), "key must be a str, not int: 7"),
    # elections, operators, clients
    (lambda client: client.election("a").observe(every=0), "every must be more than 0 s, not 0: it is the time between two requests to the server"),
    (lambda client: client.election("a").observe(every="1 second"), "every must be a number of seconds, a timedelta or text like '30s', '15m' or '1h', not '1 second'"),
    (lambda client: client.election("a").observe(timeout=-1), "timeout must be 0 s or more, or None, not -1: 0 does not wait, None waits forever"),
    (lambda client: client.election("a").on_change(7), "callback must be a function, not 7"),
    (lambda client: client.election("a").run(7), "work must be a function, not 7"),
    (lambda client: client.break_lock("a", None), "fence must be a whole number, as `inspect` shows it, not None"),
    (lambda client: client.break_lock("a", "7"), "fence must be a whole number, as `inspect` shows it, not '7'"),
    (lambda client: client.break_lock("a", True), "fence must be a whole number, as `inspect` shows it, not True"),
    (lambda client: client.break_lock("", 7), "name must not be empty: it is the text that all its users agree on"),
    (lambda client: client.request_revoke("a", 1.0), "fence must be a whole number, as `inspect` shows it, not 1.0"),
    (lambda client: client.request_revoke(7), "name must be a str, not int: 7"),
    (lambda client: client.subscribe(7), "subscriber must be a function that takes an Event, not 7"),
    (lambda client: type(client)("memory://", require=["FIFO"]), "require must be a dict such as {\"exclusion\": \"durable-authority\"}, not ['FIFO']"),
    (lambda client: type(client)("memory://", require={"exclusive": "consensus"}), "require has the unknown key 'exclusive' (did you mean 'exclusion'?): its keys are those of client.guarantees"),
    (lambda client: type(client)("memory://", require={7: "consensus"}), "require has the unknown key 7 (known: exclusion, fence, order, wake, scope): its keys are those of client.guarantees"),
    (lambda client: type(client)("memory://", require={"exclusion": "durable-authorty"}), "require has exclusion='durable-authorty' (did you mean 'durable-authority'?)"),
    (lambda client: type(client)("memory://", require={"order": "fifo"}), "require has order='fifo' (known: none, store's, by turns, FIFO)"),
    (lambda client: type(client)("memory://", require={"wake": None}), "require has wake=None (known: poll, push)"),
    (lambda client: type(client)("memory://", require={"scope": "network"}), "memory:// promises less than is required: scope is process, not network; these promise enough: redis://, redis://…?method=setnx, redis://…?method=getset, redlock://, postgresql://, postgresql://…?method=advisory, mysql://, mysql://…?method=row, mysql://…?method=version, etcd://, etcd://…?method=key, zookeeper://, nats://, memcached://"),
    (lambda client: type(client)("memory://", 30), "BaseClient.__init__() takes from 1 to 2 positional arguments but 3 were given", TypeError),
    (lambda client: type(client)("memory://", timeout=5), "memory:// has no option 'timeout' (known: ttl, require); options of a lock, such as timeout, go to client.lock()"),
    (lambda client: type(client)("memory://", tll=5), "memory:// has no option 'tll' (did you mean 'ttl'?); options of a lock, such as timeout, go to client.lock()"),
    (lambda client: type(client)("redis://cache", prefix=["a"]), "prefix must be a str, a number or a timedelta, not list"),
    (lambda client: type(client)("redis://cache?prefix=a", prefix="b"), "the option 'prefix' is given in the url and as a keyword: give it once"),
]

URLS: list[Any] = [
    # any
    ("", f"url must look like scheme://…, not '' (known: {SCHEMES_KNOWN})"),
    ("localhost:6379", f"url must look like scheme://…, not 'localhost:6379' (known: {SCHEMES_KNOWN})"),
    ("redis:/cache", f"url must look like scheme://…, not '…' (known: {SCHEMES_KNOWN})"),
    (7, f"url must look like scheme://… and be a str, not 'int' (known: {SCHEMES_KNOWN}; or a client object of redis-py or a list of them, a connection or pool of psycopg, a connection of PyMySQL or a function that makes them, an engine of SQLAlchemy, or a KazooClient)"),
    (b"redis://cache", f"url must look like scheme://… and be a str, not 'bytes' (known: {SCHEMES_KNOWN}; or a client object of redis-py or a list of them, a connection or pool of psycopg, a connection of PyMySQL or a function that makes them, an engine of SQLAlchemy, or a KazooClient)"),
    ("sqlte:///tmp/x.db", "url has the unknown scheme 'sqlte' (did you mean 'sqlite'?)"),
    ("REDIS//x", f"url must look like scheme://…, not 'REDIS//x' (known: {SCHEMES_KNOWN})"),
    ("mongo://x", f"url has the unknown scheme 'mongo' (known: {', '.join(SCHEMES)})"),
    ("memory://x?ttl=5", "memory:// has no option 'ttl' (it has none); options of a lock, such as timeout, go to client.lock()"),
    ("redis://cache?prefix=a&prefix=b", "url has the option 'prefix' twice: give it once"),
    ("sqlite:///tmp/x#y.db", "url has a fragment: write # as %23 if it belongs to the path or a password"),
    ("redis://user:x?s3cret@host", "url has an @ after its question mark: write ? as %3F in a password"),
    ("redis://user:x#s3cret@host", "url has a fragment: write # as %23 if it belongs to the path or a password"),
    ("redis://user:x:s3cret@host:port", "url has a port that is no number from 1 to 65535; also write / ? # @ : in a user or password as %2F %3F %23 %40 %3A"),
    ("redis://:s3cret@host:port", "url has a port that is no number from 1 to 65535; also write / ? # @ : in a user or password as %2F %3F %23 %40 %3A"),
    ("redis://user:s3cret#x@host", "url has a fragment: write # as %23 if it belongs to the path or a password"),
    ("redis:/user:s3cret@host", f"url must look like scheme://…, not '…' (known: {SCHEMES_KNOWN})"),
    (["redis://a", "redis://b", "sqlite:///x"], "a list of urls is for redis:// or rediss:// only, the nodes of a quorum: one is 'sqlite'"),
    (["redis://a", "redis://b", 7], "a list of urls is for redis:// or rediss:// only, the nodes of a quorum: one is 'int'"),
    (["redis://a", "redis://b", "c"], "a list of urls is for redis:// or rediss:// only, the nodes of a quorum: one is 'str'"),
    (["redis://a", "redis://b"], "url names 2 nodes: with fewer than 3 none may fail, and a plain redis:// does the same for less; add nodes, or insist with nodes=any"),
    (["redis://a?method=setnx", "redis://b", "redis://c"], "redlock:// has no option 'method' (known: prefix, nodes, max_ttl, node_timeout, quarantine, eviction, connect_timeout, connections, client_name, tls, ca_certs, certfile, keyfile, verify); options of a lock, such as timeout, go to client.lock()"),
    (["redis://a", "redis://b,d", "redis://c"], "one of the urls names several servers: in a list each url names one"),
    (["redis://a", "rediss://b", "redis://c"], "some urls are redis:// and some rediss://: use TLS for all of them, or for none"),
    (["redis://a?prefix=x", "redis://b?prefix=y", "redis://c"], "the urls differ in the option 'prefix': it must be the same in all"),
    ([], "a list of urls must name the nodes of a quorum, and it is empty"),
    ("memory://?connections=3", "memory:// has no option 'connections': it has no connections"),
    ("zookeeper://host/app?connections=3", "zookeeper:// has no option 'connections': a client has at most three sessions, with one connection each"),
    # sqlite
    ("sqlite:///tmp/x.db?connections=3", "sqlite:// has no option 'connections': a client has one connection to its file"),
    ("sqlite://", "url must name the absolute path of a lock file, as in sqlite:///folder/file"),
    ("sqlite:///", "url must name the absolute path of a lock file, as in sqlite:///folder/file"),
    ("sqlite://relative.db", re.compile(r"url has the host 'relative\.db', but a lock file is on this machine: write its absolute path after three slashes, sqlite:///.+/relative\.db")),
    ("sqlite://host/locks.db", re.compile(r"url has the host 'host', but a lock file is on this machine: write its absolute path after three slashes, sqlite:///.+/host/locks\.db")),
    ("sqlite://me:s3cret@host/locks.db", re.compile(r"url has the host 'host', but a lock file is on this machine: write its absolute path after three slashes, sqlite:///.+/host/locks\.db")),
    ("sqlite://tmp/locks.db", "url has the host 'tmp', but a lock file is on this machine: write its absolute path after three slashes, sqlite:///tmp/locks.db"),
    ("sqlite://./locks.db", re.compile(r"url has the host '\.', but a lock file is on this machine: write its absolute path after three slashes, sqlite:///.+/locks\.db")),
    ("sqlite:///locks.db", re.compile(r"url names '/locks\.db', but there is no 'locks\.db' in the root folder\. Relative paths are refused, because each working folder would have its own locks: write sqlite:///.+/locks\.db for a path in this one, or sqlite:////locks\.db for a new one in the root folder")),
    ("sqlite:///no-such-folder/x.db", re.compile(r"url names '/no-such-folder/x\.db', but there is no 'no-such-folder' in the root folder\. Relative paths are refused, because .*")),
    ("sqlite:///dev/null", "url names '/dev/null', which is not a regular file"),
    ("sqlite:///tmp/x.db?timout=5", "sqlite:// has no option 'timout' (known: local); options of a lock, such as timeout, go to client.lock()"),
    ("sqlite:///tmp/x.db?local=maybe", "local must be yes or no, not 'maybe'"),
    # redis
    ("redis://a,b", "url names 2 servers, redis:// takes one: use redis+cluster:// for a Cluster, redis+sentinel:// for Sentinels"),
    ("redis://cache:x", "url has a port that is no number from 1 to 65535; also write / ? # @ : in a user or password as %2F %3F %23 %40 %3A"),
    ("redis://cache:0", "url has a port that is no number from 1 to 65535; also write / ? # @ : in a user or password as %2F %3F %23 %40 %3A"),
    ("redis://cache:70000", "url has a port that is no number from 1 to 65535; also write / ? # @ : in a user or password as %2F %3F %23 %40 %3A"),
    ("redis://cache/x", "url has a database that is no number: the path is /0, /1, …"),
    ("redis://cache/-1", "url has a database that is no number: the path is /0, /1, …"),
    ("redis://[::1", "url has an IPv6 address with a missing bracket: write [::1]:6379"),
    ("redis://user:x/s3cret@host", "url has an @ behind its first /: write / ? # @ : in a user or password as %2F %3F %23 %40 %3A"),
    ("redis://cache?method=quue", "method must be one of queue, setnx, getset, not 'quue'"),
    ("redis://cache?eviction=yes", "eviction must be one of refuse, allow, not 'yes'"),
    ("redis://cache?compat=pottery", "compat must be python-redis-lock, not 'pottery'"),
    ("redis://cache?replicas=one", "replicas must be a whole number from 0 to 10000, not 'one'"),
    ("redis://cache?replicas=-1", "replicas must be a whole number from 0 to 10000, not '-1'"),
    ("redis://cache?replicas=1&method=getset", "url has replicas= and method=getset, which cannot wait for them: use another method"),
    ("redis://cache?io_timeout=soon", "io_timeout must be a number of seconds or text like '500ms', more than 0 and at most 3600 s, not 'soon'"),
    ("redis://cache?io_timout=5", "redis:// has no option 'io_timout' (did you mean 'io_timeout'?); options of a lock, such as timeout, go to client.lock()"),
    ("redis://cache?connect_timeout=0", "connect_timeout must be a number of seconds or text like '500ms', more than 0 and at most 3600 s, not '0'"),
    ("redis://cache?connect_timeout=nan", "connect_timeout must be a number of seconds or text like '500ms', more than 0 and at most 3600 s, not 'nan'"),
    ("redis://cache?connections=0", "connections must be a whole number from 1 to 10000, not '0'"),
    ("redis://cache?connections=many", "connections must be a whole number from 1 to 10000, not 'many'"),
    ("redis://cache?client_name=a%20b", "client_name must be ASCII letters, digits and signs without spaces, not 'a b'"),
    ("redis://cache?prefix=a{b", "url has prefix='a{b': braces are for a whole {tag}, which keeps all locks in one slot of a Cluster"),
    ("redis://cache?prefix=a%0Ab", "url has a prefix with control characters, 'a\\nb': leave them out"),
    ("redis://cache?ca_certs=x", "redis:// has no option 'ca_certs' (known: prefix, method, compat, eviction, replicas, replicas_timeout, connect_timeout, io_timeout, connections, client_name, local_handover); options of a lock, such as timeout, go to client.lock()"),
    ("redis+cluster://a,,b", "url has an empty or invalid host name: write host:port, and commas only between them"),
    ("redis+cluster://a,a", "url names the same server twice: leave one out"),
    ("redis+cluster://a/1", "url names the database '/1', but a Cluster has none but 0"),
    ("redis+cluster://a?compat=python-redis-lock", "url has compat=python-redis-lock, which does not work on a Cluster: its two keys are in different slots"),
    ("redis+cluster://cache?ca_certs=x", "ca_certs is for TLS: add tls=yes"),
    ("redis+cluster://cache?tls=maybe", "tls must be yes or no, not 'maybe'"),
    ("redis+sentinel://a", "url has no service: redis+sentinel://host1,host2,host3/service/0"),
    ("redis+sentinel://a/locks/x", "url has a database that is no number: the path is /0, /1, …"),
    ("redis+sentinel://host/locks?sentinel_password=s3cret&replicas=x", "replicas must be a whole number from 0 to 10000, not 'x'"),
    ("redis+unix://", "url must name the path of a socket: redis+unix:///run/redis/redis.sock?db=0"),
    ("redis+unix://host/run/redis.sock", "url must name the path of a socket: redis+unix:///run/redis/redis.sock?db=0"),
    ("redis+unix:///run/redis.sock?password=s3cret&db=x", "url has a database that is no number: the path is /0, /1, …"),
    ("rediss://cache?ca_certs=/nowhere.pem", "url has ca_certs='/nowhere.pem', which is not a file that this user may read"),
    ("rediss://cache?keyfile=/dev/null", "url has keyfile= without certfile=: give both, or neither"),
    ("rediss://cache?verify=maybe", "verify must be required or none, not 'maybe'"),
    # redlock
    ("redlock://a", "url names 1 nodes: with fewer than 3 none may fail, and a plain redis:// does the same for less; add nodes, or insist with nodes=any"),
    ("redlock://a,b", "url names 2 nodes: with fewer than 3 none may fail, and a plain redis:// does the same for less; add nodes, or insist with nodes=any"),
    ("redlock://a,b,a", "url names the same server twice: each node must be a server of its own"),
    ("redlock://a,b,a/1", "url names the same server twice: each node must be a server of its own"),
    ("redlock://a,,b", "url has an empty host name: redlock://host1:6379,host2:6379,host3:6379"),
    ("redlock://a,b,c:x", "url has a port that is no number from 1 to 65535; also write / ? # @ : in a user or password as %2F %3F %23 %40 %3A"),
    ("redlock://a,b,c/x", "url has a database that is no number: the path is /0, /1, …"),
    ("redlock://a,b,c?max_ttl=0", "max_ttl must be a number of seconds or text like '500ms', more than 0 and at most 3600 s, not '0'"),
    ("redlock://a,b,c?node_timeout=soon", "node_timeout must be a number of seconds or text like '500ms', more than 0 and at most 3600 s, not 'soon'"),
    ("redlock://a,b,c?quarantine=maybe", "quarantine must be yes or no, not 'maybe'"),
    ("redlock://a,b,c?nodes=2", "nodes must be one of three, any, not '2'"),
    ("redlock://a,b,c?method=queue", "redlock:// has no option 'method' (known: prefix, nodes, max_ttl, node_timeout, quarantine, eviction, connect_timeout, connections, client_name, tls, ca_certs, certfile, keyfile, verify); options of a lock, such as timeout, go to client.lock()"),
    ("redlock://a,b,c?tls=maybe", "tls must be yes or no, not 'maybe'"),
    ("redlock://a,b,c?ca_certs=x", "ca_certs is for TLS: add tls=yes"),
    ("redlock://a,b,c?connections=-1", "connections must be a whole number from 1 to 10000, not '-1'"),
    # postgresql
    ("postgresql://db.example:0/shop", "url has a port that is no number from 1 to 65535; also write / ? # @ : in a user or password as %2F %3F %23 %40 %3A"),
    ("postgresql://db.example:x/shop", "url has a port that is no number from 1 to 65535; also write / ? # @ : in a user or password as %2F %3F %23 %40 %3A"),
    ("postgresql:///shop?port=x", "port must be a whole number from 1 to 65535, not 'x'"),
    ("postgresql://db.example/shop/more", "url must name one database, postgresql://host/database, not 'shop/more'"),
    ("postgresql://db.example/shop?host=other", "url has a host before the path and as an option: give it once"),
    ("postgresql://a.example,,b.example/shop", "url has an empty or invalid host name: write host:port, and commas only between them"),
    ("postgresql://db.example/shop?schema=a%22b", "schema must be a name of letters, digits and _, at most 63, not 'a\"b'"),
    ("postgresql://db.example/shop?method=fifo", "method must be one of queue, advisory, not 'fifo'"),
    ("postgresql://db.example/shop?connect_timeout=soon", "connect_timeout must be a number of seconds or text like '500ms', more than 0 and at most 3600 s, not 'soon'"),
    ("postgresql://db.example/shop?connect_timeout=0", "connect_timeout must be a number of seconds or text like '500ms', more than 0 and at most 3600 s, not '0'"),
    ("postgresql://db.example/shop?connections=0", "connections must be a whole number from 1 to 10000, not '0'"),
    ("postgresql://db.example/sh%00op", "url must not have a zero byte in it"),
    ("postgresql://db.example/shop?options=-csearch_path%3Dx", "postgresql:// has no option 'options' (did you mean 'connections'?); options of a lock, such as timeout, go to client.lock()"),
    ("postgresql://me:s3cret/x@db.example/shop", "url has an @ behind its first /: write / ? # @ : in a user or password as %2F %3F %23 %40 %3A"),
    # mysql
    ("mysql://db.example:0/shop", "url has a port that is no number from 1 to 65535; also write / ? # @ : in a user or password as %2F %3F %23 %40 %3A"),
    ("mysql://db.example:x/shop", "url has a port that is no number from 1 to 65535; also write / ? # @ : in a user or password as %2F %3F %23 %40 %3A"),
    ("mysql://db.example/", "url must name the database that the locks are in, mysql://host/database, not ''"),
    ("mysql://db.example", "url must name the database that the locks are in, mysql://host/database, not ''"),
    ("mysql://db.example/shop/more", "url must name the database that the locks are in, mysql://host/database, not 'shop/more'"),
    ("mysql://db.example/sh`op", "url must name the database that the locks are in, mysql://host/database, not 'sh`op'"),
    ("mysql://a.example,b.example/shop", "url must name one host: locks are on one server, the one that takes the writes"),
    ("mysql://db.example/shop?socket=/run/s.sock", "url has a host and the option 'socket': write mysql:///database?socket=…"),
    ("mysql://me:a@db.example/shop?password=b", "url has a password before the host and as an option: give it once"),
    ("mysql://db.example/shop?method=fifo", "method must be one of unique, row, version, not 'fifo'"),
    ("mysql://db.example/shop?connect_timeout=0", "connect_timeout must be a number of seconds or text like '500ms', more than 0 and at most 3600 s, not '0'"),
    ("mysql://db.example/shop?connect_timeout=soon", "connect_timeout must be a number of seconds or text like '500ms', more than 0 and at most 3600 s, not 'soon'"),
    ("mysql://db.example/shop?connections=x", "connections must be a whole number from 1 to 10000, not 'x'"),
    ("mysql://db.example/shop?tls=maybe", "tls must be one of preferred, yes, no, not 'maybe'"),
    ("mysql://db.example/shop?verify=none", "verify is for TLS: add tls=yes"),
    ("mysql://db.example/shop?tls=yes&verify=perhaps", "verify must be required or none, not 'perhaps'"),
    ("mysql://db.example/shop?tls=yes&ca_certs=/nowhere", "url has ca_certs='/nowhere', which is not a file that this user may read"),
    ("mysql://db.example/shop?tls=yes&keyfile=/nowhere", "url has keyfile= without certfile=: give both, or neither"),
    ("mysql://me:s3cret/x@db.example/shop", "url has an @ behind its first /: write / ? # @ : in a user or password as %2F %3F %23 %40 %3A"),
    # etcd
    ("etcd://one.example:0", "url has a port that is no number from 1 to 65535; also write / ? # @ : in a user or password as %2F %3F %23 %40 %3A"),
    ("etcd://one.example:x", "url has a port that is no number from 1 to 65535; also write / ? # @ : in a user or password as %2F %3F %23 %40 %3A"),
    ("etcd://one.example,,two.example", "url has an empty or invalid host name: write host:port, and commas only between them"),
    ("etcd://one.example,one.example:2379", "url names the same server twice: leave one out"),
    ("etcd://[::1", "url has an IPv6 address with a missing bracket: write [::1]:2379"),
    ("etcd://one.example/path", "url has the path '/path', but etcd has none: use prefix= for a part of it"),
    ("etcd://me@one.example", "url must have both a user and a password, etcd://user:password@host, or neither"),
    ("etcd://one.example/s3cret@x", "url has an @ behind its first /: write / ? # @ : in a user or password as %2F %3F %23 %40 %3A"),
    ("etcd://one.example?method=other", "method must be one of queue, key, not 'other'"),
    ("etcd://one.example?raw_names=maybe", "raw_names must be yes or no, not 'maybe'"),
    ("etcd://one.example?connect_timeout=0", "connect_timeout must be a number of seconds or text like '500ms', more than 0 and at most 3600 s, not '0'"),
    ("etcd://one.example?connect_timeout=soon", "connect_timeout must be a number of seconds or text like '500ms', more than 0 and at most 3600 s, not 'soon'"),
    ("etcd://one.example?connections=0", "connections must be a whole number from 1 to 10000, not '0'"),
    ("etcd://one.example?ca_certs=/etc/hosts", "etcd:// has no option 'ca_certs' (known: prefix, raw_names, method, connect_timeout, connections); options of a lock, such as timeout, go to client.lock()"),
    ("etcds://one.example?ca_certs=/nowhere", "url has ca_certs='/nowhere', which is not a file that this user may read"),
    ("etcds://one.example?ca_certs=/etc/hosts", re.compile(r"url has ca_certs='/etc/hosts', which cannot be used: \[.*")),
    ("etcds://one.example?keyfile=/etc/hosts", "url has keyfile= without certfile=: give both, or neither"),
    ("etcds://one.example?verify=maybe", "verify must be required or none, not 'maybe'"),
    # zookeeper
    ("zookeeper://", "url has an empty or invalid host name: write host:port, and commas only between them"),
    ("zookeeper://one,,two", "url has an empty or invalid host name: write host:port, and commas only between them"),
    ("zookeeper://one:0", "url has a port that is no number from 1 to 65535; also write / ? # @ : in a user or password as %2F %3F %23 %40 %3A"),
    ("zookeeper://one:x", "url has a port that is no number from 1 to 65535; also write / ? # @ : in a user or password as %2F %3F %23 %40 %3A"),
    ("zookeeper://one/a/", "url has the path '/a/', which cannot be a node of ZooKeeper: it has to begin with /, and must not end with one"),
    ("zookeeper://one/zookeeper", "url has the path '/zookeeper', which cannot be a node of ZooKeeper: /zookeeper is ZooKeeper's own"),
    ("zookeeper://one/a/../b", "url has the path '/a/../b', which cannot be a node of ZooKeeper: a part of it is . or .."),
    ("zookeeper://app@one", "url must have user and password, zookeeper://user:password@host, or neither"),
    ("zookeeper://one?layout=etcd", "layout must be one of curator, kazoo, not 'etcd'"),
    ("zookeeper://one?raw_names=maybe", "raw_names must be yes or no, not 'maybe'"),
    ("zookeeper://one?session_timeout=soon", "session_timeout must be a number of seconds or text like '500ms', at least 0.5 and at most 3600 s, not 'soon'"),
    ("zookeeper://one?session_timeout=0", "session_timeout must be a number of seconds or text like '500ms', at least 0.5 and at most 3600 s, not '0'"),
    ("zookeeper://one?session_timeout=nan", "session_timeout must be a number of seconds or text like '500ms', at least 0.5 and at most 3600 s, not 'nan'"),
    ("zookeeper://one?acl=mine", "acl must be open, creator, read, or a list of scheme:id:permissions as zkCli's setAcl takes it"),
    ("zookeeper://one?acl=creator", "acl=creator is for a client that logs in: give zookeeper://user:password@host, or a client certificate"),
    ("zookeeper://one?ca_certs=/ca.pem", "ca_certs is for TLS: add tls=yes"),
    ("zookeeper://one?tls=yes&ca_certs=/nowhere", "url has ca_certs='/nowhere', which is not a file that this user may read"),
    ("zookeeper://one?tls=yes&keyfile=/k.pem", "url has keyfile= without certfile=: give both, or neither"),
    # memcached
    ("memcached://host/1", "url has the path '/1', but memcached has no databases: leave it out"),
    ("memcached://host:0", "url has a port that is no number from 1 to 65535; also write / ? # @ : in a user or password as %2F %3F %23 %40 %3A"),
    ("memcached://host:x", "url has a port that is no number from 1 to 65535; also write / ? # @ : in a user or password as %2F %3F %23 %40 %3A"),
    ("memcached://host,,other", "url has an empty or invalid host name: write host:port, and commas only between them"),
    ("memcached://host,HOST:11211", "url names the same server twice: leave one out"),
    ("memcached://[::1", "url has an IPv6 address with a missing bracket: write [::1]:11211"),
    ("memcached://user@host", "url has a user without a password or a password without a user: memcached needs both"),
    ("memcached://user:s3cret/b@host", "url has an @ behind its first /: write / ? # @ : in a user or password as %2F %3F %23 %40 %3A"),
    ("memcached://host?prefix=a%20b", "url has prefix='a b': at most 128 visible ASCII characters, no blanks and no %"),
    ("memcached://host?io_timeout=0", "io_timeout must be a number of seconds or text like '500ms', more than 0 and at most 3600 s, not '0'"),
    ("memcached://host?connect_timeout=soon", "connect_timeout must be a number of seconds or text like '500ms', more than 0 and at most 3600 s, not 'soon'"),
    ("memcached://host?connections=0", "connections must be a whole number from 1 to 10000, not '0'"),
    ("memcached://host?ttl=3", "memcached:// has no option 'ttl' (known: prefix, connect_timeout, io_timeout, connections); options of a lock, such as timeout, go to client.lock()"),
    ("memcached://host?verify=none", "memcached:// has no option 'verify' (known: prefix, connect_timeout, io_timeout, connections); options of a lock, such as timeout, go to client.lock()"),
    ("memcacheds://host?verify=perhaps", "verify must be required or none, not 'perhaps'"),
    ("memcacheds://host?ca_certs=/nowhere", "url has ca_certs='/nowhere', which is not a file that this user may read"),
    ("memcacheds://host?keyfile=/etc/hosts", "url has keyfile= without certfile=: give both, or neither"),
    ("memcacheds://host?certfile=/etc/hosts", re.compile(r"url has certfile='/etc/hosts', which cannot be used: \[.*")),
]

FENCES: list[Any] = [
    (lambda: SQLiteGuard().check(object(), "stock", 0), "fence must be the `fence` of a lease, a whole number from 1 to 9223372036854775807, not 0"),
    (lambda: SQLiteGuard().check(object(), "stock", -1), "fence must be the `fence` of a lease, a whole number from 1 to 9223372036854775807, not -1"),
    (lambda: SQLiteGuard().check(object(), "stock", True), "fence must be the `fence` of a lease, a whole number from 1 to 9223372036854775807, not True"),
    (lambda: SQLiteGuard().check(object(), "stock", None), "fence must be the `fence` of a lease, a whole number from 1 to 9223372036854775807, not None"),
    (lambda: SQLiteGuard().check(object(), "stock", "7"), "fence must be the `fence` of a lease, a whole number from 1 to 9223372036854775807, not '7'"),
    (lambda: SQLiteGuard().check(object(), "stock", 7.0), "fence must be the `fence` of a lease, a whole number from 1 to 9223372036854775807, not 7.0"),
    (lambda: SQLiteGuard().check(object(), "stock", 2**63), "fence must be the `fence` of a lease, a whole number from 1 to 9223372036854775807, not 9223372036854775808"),
    (lambda: SQLiteGuard().check_updated(object(), "stock", 0), "fence must be the `fence` of a lease, a whole number from 1 to 9223372036854775807, not 0"),
    (lambda: SQLiteGuard().check(object(), "", 1), "resource must not be empty: it is the text that all its users agree on"),
    (lambda: SQLiteGuard().check(object(), "x" * 513, 1), "resource has 513 characters, at most 512 are allowed: use a digest of the long part"),
    (lambda: SQLiteGuard().check(object(), b"stock", 1), "resource must be a str, not bytes: b'stock'"),
    (lambda: SQLiteGuard().check(object(), None, 1), "resource must be a str, not NoneType: None"),
    (lambda: SQLiteGuard().check(object(), "\ud800", 1), "resource '\\ud800' is not valid Unicode text (surrogates not allowed)"),
    (lambda: SQLiteGuard(table="a b"), "table must be a plain SQL name, with its schema or without, not 'a b'"),
    (lambda: SQLiteGuard(table="a;b"), "table must be a plain SQL name, with its schema or without, not 'a;b'"),
    (lambda: SQLiteGuard(table=""), "table must be a plain SQL name, with its schema or without, not ''"),
    (lambda: SQLiteGuard(table="a.b.c"), "table must be a plain SQL name, with its schema or without, not 'a.b.c'"),
    (lambda: SQLiteGuard(table=None), "table must be a plain SQL name, with its schema or without, not None"),
    (lambda: SQLiteGuard().column('a"'), "column must be a plain SQL name, with its schema or without, not 'a\"'"),
    (lambda: SQLiteGuard().column("1a"), "column must be a plain SQL name, with its schema or without, not '1a'"),
    (lambda: SQLiteGuard(paramstyle="named"), "paramstyle must be one of format, pyformat, qmark, not 'named'"),
    (lambda: RedisGuard(REDIS).write(0, "SET", "stock", 1), "fence must be the `fence` of a lease, a whole number from 1 to 9223372036854775807, not 0"),
    (lambda: RedisGuard(REDIS).write(7, "SET stock", 1), "command must be one word such as 'SET', its arguments apart, not 'SET stock'"),
    (lambda: replace("stock", b"", fence=0), "fence must be the `fence` of a lease, a whole number from 1 to 9223372036854775807, not 0"),
    (lambda: replace(b"stock", b"", fence=7), "path must be a str or a path of text, not b'stock'"),
]

COMMANDS: list[Any] = [
    ("", "$HOLDFAST_URL, or a file in this user's state folder."),
    ("run", "holdfast run: error: the following arguments are required: NAME"),
    ("run a", "holdfast run: error: COMMAND is missing: holdfast run [options] NAME COMMAND"),
    ("run a --", "holdfast run: error: COMMAND is missing: holdfast run [options] NAME COMMAND"),
    ("run -- true", "holdfast run: error: COMMAND is missing: holdfast run [options] NAME COMMAND"),
    ("run --ttl 0 a true", "holdfast run: error: argument --ttl: must be 0.1 or more seconds, not 0"),
    ("run --ttl -5 a true", "holdfast run: error: argument --ttl: must be 0.1 or more seconds, not -5"),
    ("run --ttl -5s a true", "holdfast run: error: argument --ttl: must be a number of seconds or text like 500ms, 30s, 15m or 1h, not '-5s'"),
    ("run --ttl nan a true", "holdfast run: error: argument --ttl: must be 0.1 or more seconds, not nan"),
    ("run --ttl a true", "holdfast run: error: argument --ttl: must be a number of seconds or text like 500ms, 30s, 15m or 1h, not 'a'"),
    ("run --tll 5 a true", "holdfast: run has no option --tll: did you mean --ttl?"),
    ("run -x a true", "holdfast: run has no option -x: `holdfast run --help` lists them; -- goes before a name with a dash"),
    ("run --timeout=-1 a true", "holdfast run: error: argument -w/--timeout: must be 0 or more seconds, not -1"),
    ("run -w soon a true", "holdfast run: error: argument -w/--timeout: must be a number of seconds or text like 500ms, 30s, 15m or 1h, not 'soon'"),
    ("run -n -w 3 a true", "holdfast run: error: argument -w/--timeout: not allowed with argument -n/--no-wait"),
    ("run --grace 20 a true", "holdfast run: error: argument --grace: must be at most half the ttl (15 s), not 20"),
    ("run --max-hold 0 a true", "holdfast run: error: argument --max-hold: must be 0.1 or more seconds, not 0"),
    ("run --semaphore 0 a true", "holdfast run: error: argument --semaphore: must be a whole number, from 1 to 1,000,000, not '0'"),
    ("run --semaphore two a true", "holdfast run: error: argument --semaphore: must be a whole number, from 1 to 1,000,000, not 'two'"),
    ("run --semaphore 2 --shared a true", "holdfast run: error: argument -s/--shared: not allowed with argument --semaphore"),
    ("run --meta owner a true", "holdfast run: error: argument --meta: must be KEY=VALUE, not 'owner'"),
    ("run -E 300 a true", "holdfast run: error: argument -E/--busy-status: must be a whole number, from 0 to 255, not '300'"),
    ("run -E -1 a true", "holdfast run: error: argument -E/--busy-status: must be a whole number, from 0 to 255, not '-1'"),
    ("run -E busy a true", "holdfast run: error: argument -E/--busy-status: must be a whole number, from 0 to 255, not 'busy'"),
    ("run --url nothing a true", f"holdfast: url must look like scheme://…, not 'nothing' (known: {SCHEMES_KNOWN})"),
    ("run --url memory:// a true", "holdfast: url memory:// is private to one process: use a store that other processes can reach"),
    ("run '' true", "holdfast: name must not be empty: it is the text that all its users agree on"),
    ("ls --url nonsense", f"holdfast: url must look like scheme://…, not 'nonsense' (known: {SCHEMES_KNOWN})"),
    ("ls --url memory://", "holdfast: url memory:// is private to one process: use a store that other processes can reach"),
    ("ls --url sqlte:///x.db", "holdfast: url has the unknown scheme 'sqlte' (did you mean 'sqlite'?)"),
    ("ls --json --names", "holdfast ls: error: argument --names: not allowed with argument --json"),
    ("ls --jsn", "holdfast: ls has no option --jsn: did you mean --json?"),
    ("ls a b", "holdfast: error: unrecognized arguments: b"),
    ("show", "holdfast show: error: the following arguments are required: NAME"),
    ("show ''", "holdfast: name must not be empty: it is the text that all its users agree on"),
    ("show " + "x" * 513, "holdfast: name has 513 characters, at most 512 are allowed: use a digest of the long part"),
    ("show a b", "holdfast: error: unrecognized arguments: b"),
    ("show -a", "holdfast: show has no option -a: `holdfast show --help` lists them; -- goes before a name with a dash"),
    ("revoke a --fence first", "holdfast revoke: error: argument --fence: must be a whole number, 0 or more, not 'first'"),
    ("break a --fence first", "holdfast break: error: argument --fence: must be a whole number, 0 or more, not 'first'"),
    ("break a --fence -1", "holdfast break: error: argument --fence: must be a whole number, 0 or more, not '-1'"),
    ("break a --fenec", "holdfast: break has no option --fenec: did you mean --fence?"),
    ("run --min-hold 2m --max-hold 1m a true", "holdfast run: error: argument --min-hold: must be at most --max-hold (60 s)"),
    ("run --once-per soon a true", "holdfast run: error: argument --once-per: must be a number of seconds or text like 500ms, 30s, 15m or 1h, not 'soon'"),
    ("run --once-per 0 a true", "holdfast run: error: argument --once-per: must be 1 or more seconds, not 0"),
    ("run --once-per 1500ms a true", "holdfast: period must be whole seconds, not 1.5"),
    ("run --once-per 53w a true", "holdfast: period must be between 1 s and 366 days, not 32054400.0"),
    ("run --once-per 1h --offset 1h a true", "holdfast: offset must be 0 or more and less than the period, not 3600.0"),
    ("run --offset 1h a true", "holdfast run: error: argument --offset: needs --once-per"),
    ("run --once-per 1h --shared a true", "holdfast run: error: argument -s/--shared: not allowed with argument --once-per"),
    ("watch --interval 0", "holdfast watch: error: argument --interval: must be 0.05 or more seconds, not 0"),
    ("watch --interval nan", "holdfast watch: error: argument --interval: must be 0.05 or more seconds, not nan"),
    ("watch --interval soon", "holdfast watch: error: argument --interval: must be a number of seconds or text like 500ms, 30s, 15m or 1h, not 'soon'"),
    ("init nonsense", f"holdfast: url must look like scheme://…, not 'nonsense' (known: {SCHEMES_KNOWN})"),
    ("init --prnt", "holdfast: init has no option --prnt: did you mean --print?"),
    ("backends --url nonsense", f"holdfast: url must look like scheme://…, not 'nonsense' (known: {SCHEMES_KNOWN})"),
    ("completion tcsh", re.compile(".*argument SHELL: invalid choice: 'tcsh' .*")),
    ("completion", "holdfast completion: error: the following arguments are required: SHELL"),
    ("simulate --seeds 0", "holdfast simulate: error: argument --seeds: must be a whole number, 1 or more, not '0'"),
    ("simulate --seed -1", "holdfast simulate: error: argument --seed: must be a whole number, 0 or more, not '-1'"),
    ("simulate --backend redid", re.compile(".*argument --backend: invalid choice: 'redid' .*")),
    ("simulate --clients 17", "holdfast simulate: error: argument --clients: must be a whole number, from 1 to 16, not '17'"),
    ("verify", "holdfast verify: error: the following arguments are required: URL"),
    ("verify nonsense", f"holdfast: url must look like scheme://…, not 'nonsense' (known: {SCHEMES_KNOWN})"),
    ("verify memory://", "holdfast: url is private to one process: verify needs a store that other processes can reach"),
    ("verify memory:// --seconds soon", "holdfast verify: error: argument --seconds: must be a number of seconds or text like 500ms, 30s, 15m or 1h, not 'soon'"),
    ("verify memory:// --seconds 0", "holdfast verify: error: argument --seconds: must be 1 or more seconds, not 0"),
    ("verify memory:// --workers 1", "holdfast verify: error: argument --workers: must be a whole number, from 2 to 64, not '1'"),
    ("verify memory:// --ttl 0.1", "holdfast verify: error: argument --ttl: must be 0.5 or more seconds, not 0.1"),
    ("verify memory:// --seed -1", "holdfast verify: error: argument --seed: must be a whole number, 0 or more, not '-1'"),
    ("verify memory:// --only rain", re.compile("holdfast: --only rain: no such fault .known: pause, kill, fork, .*half-open.")),
    ("verify memory:// --fault restart", "holdfast: --fault must be NAME=COMMAND, not 'restart'"),
    ("verify memory:// --between =true", "holdfast: --between must be NAME=COMMAND, not '=true'"),
    ("verify memory:// --fault pause=true", "holdfast: --fault pause=…: another fault has this name, choose another one"),
    ("verify memory:// --adapter nonsense", "holdfast: --adapter must be MODULE:CLASS, not 'nonsense'"),
    ("verify memory:// --adapter no.such:Lock", "holdfast: --adapter no.such:Lock: No module named 'no'"),
    ("verify memory:// --adapter json:dumps", "holdfast: --adapter json:dumps: it must be a subclass of holdfast_lab.verify.Adapter, or of its twin for asyncio"),
    ("verify memory:// --report /no/such/page.html", "holdfast: --report /no/such/page.html: No such file or directory"),
    ("demo --workers 1", "holdfast demo: error: argument --workers: must be a whole number, from 2 to 9, not '1'"),
    ("demo --seconds soon", "holdfast demo: error: argument --seconds: must be a number of seconds or text like 500ms, 30s, 15m or 1h, not 'soon'"),
    ("lst", "holdfast: there is no command 'lst' (did you mean 'ls'?)"),
    ("--url memory:// ls", "holdfast: --url must follow the command: holdfast run --url …"),
    ("--quick ls", "holdfast: holdfast has no option --quick: `holdfast --help` lists them; -- goes before a name with a dash"),
    ("nonsense", "holdfast: there is no command 'nonsense' (known: run, ls, show, revoke, break, once, top, watch, deadlocks, dashboard, init, backends, completion, simulate, verify, demo)"),
    ("--verson", "holdfast: holdfast has no option --verson: did you mean --version?"),
]

ENVIRONMENT: list[Any] = [
    ({"HOLDFAST_URL": "nonsense"}, f"HOLDFAST_URL is refused: url must look like scheme://…, not 'nonsense' (known: {SCHEMES_KNOWN})"),
    ({"HOLDFAST_URL": "rediss//cache"}, f"HOLDFAST_URL is refused: url must look like scheme://…, not 'rediss//cache' (known: {SCHEMES_KNOWN})"),
    ({"HOLDFAST_URL": "redis://cache:0"}, "HOLDFAST_URL is refused: url has a port that is no number from 1 to 65535; also write / ? # @ : in a user or password as %2F %3F %23 %40 %3A"),
    ({"HOLDFAST_URL": "redis://cache?ttl=5"}, "HOLDFAST_URL is refused: redis:// has no option 'ttl' (known: prefix, method, compat, eviction, replicas, replicas_timeout, connect_timeout, io_timeout, connections, client_name, local_handover); options of a lock, such as timeout, go to client.lock()"),
    ({"HOLDFAST_URL": "etcd://one?method=other"}, "HOLDFAST_URL is refused: method must be one of queue, key, not 'other'"),
    ({"HOLDFAST_REQUIRE_URL": "1"}, "no url is given, and HOLDFAST_REQUIRE_URL asks for one: set HOLDFAST_URL, or give a url (url= in Python, --url on the command line)"),
    ({"HOLDFAST_REQUIRE_URL": "1", "HOLDFAST_URL": ""}, "no url is given, and HOLDFAST_REQUIRE_URL asks for one: set HOLDFAST_URL, or give a url (url= in Python, --url on the command line)"),
    ({"HOLDFAST_REQUIRE_URL": "maybe"}, "HOLDFAST_REQUIRE_URL must be 1 or 0, not 'maybe'"),
    ({"XDG_STATE_HOME": "/dev/null"}, "url names '/dev/null/holdfast/locks.db', but '/dev/null' is not a folder"),
]
# fmt: on


@pytest.fixture(params=["Client", "AsyncClient"])
def make(request: pytest.FixtureRequest) -> Any:
    return getattr(holdfast, request.param)


def refused(pattern: str) -> Any:
    return pytest.raises(holdfast.ConfigurationError, match=pattern)


def run(words: list[str]) -> tuple[Any, str, str]:
    """The exit status of a command in this process, and what it printed."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            status: Any = main(words)
        except SystemExit as end:
            status = end.code
    return status, out.getvalue(), errors.getvalue()


def run_in_new_process(words: list[str]) -> tuple[Any, str, str]:
    """As `run`, in a new process."""
    result = subprocess.run([sys.executable, "-m", "holdfast", *words], capture_output=True, text=True, check=False)
    return result.returncode, result.stdout, result.stderr


def test_there_are_many_cases() -> None:
    assert sum(map(len, (ARGUMENTS, URLS, FENCES, COMMANDS, ENVIRONMENT))) >= 120


def check(error: BaseException, message: str | re.Pattern[str]) -> None:
    text = str(error).replace("Async", "")
    if isinstance(message, re.Pattern):
        assert message.fullmatch(text)
    else:
        assert text == message
    assert "s3cret" not in text


def case_id(case: Any) -> str:
    return re.sub(r"[^\w ./:=-]", "", str(case[1]))[:60]


@pytest.mark.parametrize("case", ARGUMENTS, ids=case_id)
def test_bad_arguments_are_refused(make: Any, case: Any) -> None:
    call, message, kind = case if len(case) == 3 else (*case, holdfast.ConfigurationError)

    async def bad_call() -> None:
        client = make(f"memory://{uuid.uuid4().hex}")
        with pytest.raises(kind) as refused:
            result = call(client)
            if inspect.isawaitable(result):
                await result
        check(refused.value, message)
        assert type(refused.value) is kind
        for result in (client.locks(), client.close()):
            assert not (await result if inspect.isawaitable(result) else result)

    asyncio.run(bad_call())


@pytest.mark.parametrize("case", URLS, ids=case_id)
def test_bad_urls_are_refused(make: Any, case: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, message = case
    monkeypatch.chdir(tmp_path)
    threads = threading.active_count()

    with pytest.raises(holdfast.ConfigurationError) as refused:
        make(url)

    check(refused.value, message)
    assert [*tmp_path.iterdir()] == []
    assert threading.active_count() == threads


@pytest.mark.parametrize("case", FENCES, ids=case_id)
def test_bad_arguments_of_guards_are_refused(case: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call, message = case
    monkeypatch.chdir(tmp_path)

    with pytest.raises(holdfast.ConfigurationError) as refused:
        call()

    check(refused.value, message)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("case", COMMANDS, ids=lambda case: case[0])
def test_bad_commands_are_refused(case: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line, message = case
    url = f"sqlite://{tmp_path}/locks.db"
    monkeypatch.setenv("HOLDFAST_URL", url)
    # `run` changes the signal handlers before it opens the store, so it needs a new process.
    in_new_process = line.startswith("run ") and str(message).startswith("holdfast: ")
    status, out, errors = (run_in_new_process if in_new_process else run)(shlex.split(line))

    assert (status, out) == (2, "")
    check(ValueError(errors.splitlines()[-1]), message)
    if (tmp_path / "locks.db").exists():
        with holdfast.Client(url) as client:
            assert client.locks() == []


@pytest.mark.parametrize("case", ENVIRONMENT, ids=case_id)
def test_bad_environment_variables_are_refused(make: Any, case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    variables, message = case
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(holdfast.ConfigurationError) as refused:
        make()

    check(refused.value, message)
    status, out, errors = run(["ls"])
    assert (status, out, errors) == (2, "", f"holdfast: {message}\n")


def test_a_missing_driver_names_the_extra(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEMES, "redis", Scheme("holdfast.backends.redis", driver="no_such_driver", extra="redis"))

    with refused(r"redis:// needs the module 'no_such_driver'.*pip install 'holdfast\[redis\]'"):
        make("redis://cache")


def test_a_python_without_sqlite_gets_its_own_error(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEMES, "sqlite", Scheme("holdfast.backends.sqlite", driver="no_such_sqlite3"))

    with refused("part of Python, but this Python was built without it"):
        make("sqlite:///tmp/x.db")


def test_a_folder_is_not_a_lock_file(make: Any, tmp_path: Path) -> None:
    with refused(f"names the folder.*name a file in it, such as {re.escape(str(tmp_path))}/locks.db"):
        make(f"sqlite://{tmp_path}")


def test_a_file_is_not_a_folder(make: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with refused("is not a folder"):
        make(f"sqlite://{tmp_path}/file/locks.db")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user to be refused")
@pytest.mark.parametrize("target", ["file", "folder"])
def test_a_missing_permission_is_reported(tmp_path: Path, target: str) -> None:
    (tmp_path / "locks.db").touch()
    for folder in [tmp_path, *tmp_path.parents]:
        if folder.stat().st_uid == 0 and str(folder) not in ("/", "/tmp"):  # noqa: S108
            folder.chmod(0o755)
    (tmp_path / "locks.db").chmod(0o600 if target == "file" else 0o666)
    source = str(Path(holdfast.__file__).parents[1])
    program = (  # the other user may not read this Python installation, so everything is imported before
        f"import os, sys; sys.path.insert(0, {source!r})\n"
        "import holdfast, holdfast.backends.sqlite.io.blocking\n"
        "os.setgid(65534); os.setuid(65534)\n"
        f"holdfast.Client('sqlite://{tmp_path}/locks.db')"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    may_not = "may not read and write" if target == "file" else "may not write to the folder"
    assert may_not in result.stderr, result.stderr
    assert "ConfigurationError" in result.stderr


def test_passwords_are_never_shown() -> None:
    client = holdfast.Client("memory://user:s3cret@host/0")

    assert client.url == "memory://user:***@host/0"
    assert "s3cret" not in repr(client)


def test_lock_all_refuses_locks_of_the_other_api() -> None:
    lock: Any = holdfast.Client("memory://").lock("a")
    awaited: Any = holdfast.AsyncClient("memory://").lock("a")

    with refused("not <AsyncLock 'a'"):
        holdfast.Client("memory://").lock_all([awaited])
    with refused("not <Lock 'a'"):
        holdfast.AsyncClient("memory://").lock_all([lock])


def test_one_name_on_two_clients_of_the_same_kind(make: Any, tmp_path: Path) -> None:
    client, same_kind = make("memory://one"), make("memory://two")
    other_kind = make(f"sqlite://{tmp_path}/locks.db")

    with refused(r"lock_all\(\) has 'a' twice, on two clients of memory.*give them different names"):
        client.lock_all(["a", same_kind.lock("a")])
    assert client.lock_all(["a", same_kind.lock("b"), client.lock("a")]).names == ("a", "b")
    assert client.lock_all(["a", other_kind.lock("a")]).names == ("a", "a")
