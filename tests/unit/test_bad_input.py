"""Bad input is refused at construction, with the name of the argument and what to do instead."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.url import SCHEMES, Scheme


@pytest.fixture(params=["Client", "AsyncClient"])
def make(request: pytest.FixtureRequest) -> Any:
    return getattr(holdfast, request.param)


def refused(pattern: str) -> Any:
    return pytest.raises(holdfast.ConfigurationError, match=pattern)


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("", "name must not be empty"),
        ("x" * 513, "513 characters, at most 512"),
        (b"bytes", "name must be a str, not bytes"),
        (None, "name must be a str, not NoneType"),
        (7, "name must be a str, not int"),
        ("\ud800", "not valid Unicode"),
    ],
)
def test_names(make: Any, name: Any, pattern: str) -> None:
    client = make("memory://")

    for use in (client.lock, client.rwlock, lambda name: client.semaphore(name, 2)):
        with refused(pattern):
            use(name)


HUGE = 10**400


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), 1e12, HUGE, "30", True, 0.01])
def test_ttl(make: Any, value: Any) -> None:
    with refused("ttl must be"):
        make("memory://").lock("a", ttl=value)
    with refused("ttl must be"):
        make("memory://", ttl=value)


@pytest.mark.parametrize("value", [-1, -0.001, float("nan"), float("inf"), "5", False, HUGE])
def test_timeout(make: Any, value: Any) -> None:
    with refused("timeout must"):
        make("memory://").lock("a", timeout=value)


def test_timeout_of_acquire() -> None:
    with holdfast.Client("memory://") as client:
        with refused("timeout must not be negative"):
            client.lock("a").acquire(timeout=-1)
        assert not client.lock("a").locked()


@pytest.mark.parametrize("value", [0, -1, 1.5, "3", True, None, 10**7])
def test_limit(make: Any, value: Any) -> None:
    with refused("limit must be a whole number"):
        make("memory://").semaphore("a", value)


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        ({"max_hold": 0}, "max_hold must be more than 0"),
        ({"max_hold": -3}, "max_hold must be more than 0"),
        ({"max_hold": "1h"}, "max_hold must be a number"),
        ({"stop_margin": -1}, "stop_margin must be between 0 and half the ttl"),
        ({"stop_margin": 16}, r"half the ttl \(15 s\)"),
        ({"meta": ["a"]}, "meta must be a dict"),
        ({"meta": {1: 2}}, "meta must be a dict with str keys"),
        ({"meta": {"a": object()}}, "meta must be something JSON can write"),
        ({"meta": {"a": float("nan")}}, "meta must be something JSON can write"),
        ({"on_lost": "raise"}, "on_lost must be None, 'event' or a function"),
        ({"reentrant": 1}, "reentrant must be True or False"),
        ({"renew": None}, "renew must be True or False"),
        ({"blocking_timeout": 5}, "lock.*no argument 'blocking_timeout'.*redis-py's `timeout` is `ttl` here"),
        ({"expire": 5}, "no argument 'expire'.*`ttl` is how long"),
        ({"max_leases": 5}, "no argument 'max_leases'.*`limit`"),
        ({"colour": "red"}, "no argument 'colour'$"),
    ],
)
def test_options(make: Any, options: dict[str, Any], pattern: str) -> None:
    with refused(pattern):
        make("memory://").lock("a", **options)


@pytest.mark.parametrize("value", [None, b"7", 1.0, True])
def test_fence_and_prefix(value: Any) -> None:
    with holdfast.Client("memory://") as client:
        with refused("fence must be a whole number"):
            client.break_lock("a", value)
        with refused("prefix must be a str"):
            client.locks(value)


def test_words_of_other_libraries_in_acquire() -> None:
    client: Any = holdfast.Client("memory://")
    with refused("acquire.*'blocking_timeout'.*`timeout` is how long to wait"):
        client.lock("a").acquire(blocking_timeout=5)


@pytest.mark.parametrize(
    ("url", "pattern"),
    [
        ("", "url must look like scheme://"),
        ("localhost:6379", "url must look like scheme://"),
        (7, "url must look like scheme://"),
        ("sqlte:///tmp/x.db", r"unknown scheme 'sqlte' \(did you mean 'sqlite'\?\)"),
        ("mongo://x", r"unknown scheme 'mongo' \(known: memory, sqlite, redis, "),
        ("memory://x?ttl=5", "unknown option 'ttl'.*takes: none.*goes to client.lock"),
        ("sqlite:///tmp/x.db?timout=5", "unknown option 'timout'"),
        ("sqlite:///tmp/x#y.db", "fragment.*%23"),
        ("redis://cache?prefix=a&prefix=b", "the option 'prefix' twice"),
        ("sqlite://relative.db", "absolute path"),
        ("sqlite://", "absolute path"),
    ],
)
def test_urls(make: Any, url: Any, pattern: str) -> None:
    with refused(pattern):
        make(url)


def test_a_missing_driver_names_the_extra(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEMES, "redis", Scheme("holdfast.backends.redis", driver="no_such_driver", extra="redis"))

    with refused(r"redis:// needs the module 'no_such_driver'.*pip install 'holdfast\[redis\]'"):
        make("redis://cache")


def test_a_python_without_sqlite_is_told_apart(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEMES, "sqlite", Scheme("holdfast.backends.sqlite", driver="no_such_sqlite3"))

    with refused("part of Python, but this one was built without it"):
        make("sqlite:///tmp/x.db")


def test_a_folder_is_not_a_lock_file(make: Any, tmp_path: Path) -> None:
    with refused(f"names the folder.*name a file in it, such as {re.escape(str(tmp_path))}/locks.db"):
        make(f"sqlite://{tmp_path}")


def test_a_file_is_not_a_folder(make: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with refused("is not a folder"):
        make(f"sqlite://{tmp_path}/file/locks.db")


def test_a_device_is_not_a_lock_file(make: Any) -> None:
    with refused("not a regular file"):
        make("sqlite:///dev/null")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user to be refused")
@pytest.mark.parametrize("what", ["file", "folder"])
def test_no_permission(tmp_path: Path, what: str) -> None:
    (tmp_path / "locks.db").touch()
    for folder in [tmp_path, *tmp_path.parents]:
        if folder.stat().st_uid == 0 and str(folder) not in ("/", "/tmp"):  # noqa: S108
            folder.chmod(0o755)
    (tmp_path / "locks.db").chmod(0o600 if what == "file" else 0o666)
    source = str(Path(holdfast.__file__).parents[1])
    program = (  # as another user, who may not even read our Python: everything is imported before
        f"import os, sys; sys.path.insert(0, {source!r})\n"
        "import holdfast, holdfast.backends.sqlite.blocking\n"
        "os.setgid(65534); os.setuid(65534)\n"
        f"holdfast.Client('sqlite://{tmp_path}/locks.db')"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    may_not = "may not read and write" if what == "file" else "may not write to the folder"
    assert may_not in ran.stderr, ran.stderr
    assert "ConfigurationError" in ran.stderr


def test_passwords_are_never_shown() -> None:
    client = holdfast.Client("memory://user:s3cret@host/0")

    assert client.url == "memory://user:***@host/0"
    assert "s3cret" not in repr(client)


@pytest.mark.parametrize(
    "url",
    [
        "redis:/user:s3cret@host",
        "redis://user:s3cret#x@host",
        "redis://user:x#s3cret@host",
        "redis://user:x/s3cret@host",
        "redis://user:x?s3cret@host",
        "redis://user:x:s3cret@host:port",
        "redis://:s3cret@host:port",
        "redis+unix:///run/redis.sock?password=s3cret&db=x",
        "redis+sentinel://host/locks?sentinel_password=s3cret&replicas=x",
    ],
)
def test_passwords_are_not_shown_in_refusals_either(make: Any, url: str) -> None:
    with pytest.raises(holdfast.ConfigurationError) as refused:
        make(url)

    assert "s3cret" not in str(refused.value)


def test_options_may_be_keywords_but_not_both(make: Any) -> None:
    assert "s3cret" not in make("redis+unix:///run/redis.sock", password="s3cret").url  # noqa: S106

    with refused("'prefix' is given in the url and as a keyword"):
        make("redis://cache?prefix=a", prefix="b")
    with refused(r"unknown option 'timeout'.*goes to client.lock\(\)"):
        make("redis://cache", timeout=5)
    with refused("prefix must be a str or a number, not list"):
        make("redis://cache", prefix=["a"])


@pytest.mark.parametrize(
    ("locks", "pattern"),
    [
        ("abc", r"lock_all\(\) takes a list of names: \['abc'\], or use lock\(\)"),
        ([], r"lock_all\(\) needs at least one name"),
        ([""], "name must not be empty"),
        (["a", "x" * 513], "513 characters, at most 512"),
        ([7], r"lock_all\(\) takes names and locks that one holds at a time, not 7"),
        ([b"a"], "names and locks that one holds at a time, not b'a'"),
        ([None], "names and locks that one holds at a time, not None"),
        (7, r"lock_all\(\) takes a list of names and locks, not 7"),
        (None, r"lock_all\(\) takes a list of names and locks, not None"),
    ],
)
def test_several_locks(make: Any, locks: Any, pattern: str) -> None:
    with refused(pattern):
        make("memory://").lock_all(locks)


def test_only_what_one_holds_at_a_time_goes_into_several(make: Any) -> None:
    client = make("memory://")

    with refused("locks that one holds at a time, not <.*Semaphore 'b'"):
        client.lock_all(["a", client.semaphore("b", 2)])
    with refused("locks that one holds at a time, not <.*Lock 'b'"):
        client.lock_all(["a", client.rwlock("b").read()])
    with refused("locks that one holds at a time, not <.*RWLock"):
        client.lock_all(["a", client.rwlock("b")])
    assert client.lock_all(["c", client.rwlock("b").write(), client.lock("a")]).names == ("a", "b", "c")


def test_the_two_shells_do_not_mix_in_several() -> None:
    lock: Any = holdfast.Client("memory://").lock("a")
    awaited: Any = holdfast.AsyncClient("memory://").lock("a")

    with refused("not <AsyncLock 'a'"):
        holdfast.Client("memory://").lock_all([awaited])
    with refused("not <Lock 'a'"):
        holdfast.AsyncClient("memory://").lock_all([lock])


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        ({"reentrant": True}, r"lock_all\(\) takes no argument 'reentrant'"),
        ({"blocking": False}, r"lock_all\(\) takes no argument 'blocking': timeout=0 does not wait"),
        ({"expire": 5}, r"lock_all\(\) takes no argument 'expire': `ttl` is how long"),
        ({"colour": "red"}, r"lock_all\(\) takes no argument 'colour'$"),
        ({"ttl": 0}, "ttl must be"),
        ({"timeout": -1}, "timeout must not be negative"),
        ({"stop_margin": 16}, r"half the ttl \(15 s\)"),
        ({"on_lost": "raise"}, "on_lost must be None, 'event' or a function"),
        ({"lock_delay": -1}, "lock_delay must be between 0 and 86400 s"),
        ({"owner": ""}, "owner must be a name of 1 to 255 characters"),
        ({"revocable": True, "renew": False}, "revocable needs renew=True"),
    ],
)
def test_options_of_several(make: Any, options: dict[str, Any], pattern: str) -> None:
    with refused(pattern):
        make("memory://").lock_all(["a", "b"], **options)


def test_options_of_acquire_of_several() -> None:
    client: Any = holdfast.Client("memory://")
    with refused("acquire.*'sleep'.*waiters are woken"):
        client.lock_all(["a"]).acquire(sleep=1)


def test_one_name_on_two_clients_of_the_same_kind(make: Any, tmp_path: Path) -> None:
    one, two = make("memory://one"), make("memory://two")
    other = make(f"sqlite://{tmp_path}/locks.db")

    with refused(r"lock_all\(\) has 'a' twice, on two clients of memory.*give them different names"):
        one.lock_all(["a", two.lock("a")])
    assert one.lock_all(["a", two.lock("b"), one.lock("a")]).names == ("a", "b")
    assert one.lock_all(["a", other.lock("a")]).names == ("a", "a")


@pytest.mark.parametrize(
    ("period", "pattern"),
    [
        ("15", "period must look like '15m'.*not '15'"),
        ("m", "period must look like '15m'"),
        ("", "period must look like '15m'"),
        ("-15m", "period must look like '15m'"),
        ("1.5h", "period must look like '15m'"),
        ("15 minutes", "period must look like '15m'"),
        ("1y", r"period must look like '15m' \(s, m, h, d or w\)"),
        ("9" * 5000 + "d", "period must"),
        ("0s", "period must be between 1 s and 366 days"),
        (0, "period must be between 1 s and 366 days"),
        (-60, "period must be between 1 s and 366 days"),
        ("53w", "period must be between 1 s and 366 days"),
        (HUGE, "period must be between 1 s and 366 days"),
        (0.5, "period must be whole seconds"),
        (timedelta(milliseconds=1500), "period must be whole seconds, a timedelta of such"),
        (float("nan"), "period must be whole seconds"),
        (float("inf"), "period must be whole seconds"),
        (True, "period must be whole seconds"),
        (None, "period must be whole seconds"),
        (b"15m", "period must be whole seconds"),
    ],
)
def test_periods(make: Any, period: Any, pattern: str) -> None:
    with refused(pattern):
        make("memory://").once_per(period, name="job")
    with refused(pattern):
        holdfast.once_per(period, name="job")


@pytest.mark.parametrize(
    ("offset", "pattern"),
    [
        ("1h", "offset must be less than the period"),
        (3600, "offset must be less than the period"),
        (-1, "offset must be less than the period, and not negative"),
        ("-5m", "offset must look like '15m'"),
        (0.5, "offset must be whole seconds"),
        (None, "offset must be whole seconds"),
        (float("nan"), "offset must be whole seconds"),
    ],
)
def test_offsets(make: Any, offset: Any, pattern: str) -> None:
    with refused(pattern):
        make("memory://").once_per("1h", name="job", offset=offset)


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        ({"name": ""}, "name must not be empty"),
        ({"name": 7}, "name must be a str"),
        ({"lease": 7}, "lease must be the name of a parameter"),
        ({"busy": "skip"}, r"once_per\(\) takes no argument 'busy'"),
        ({"colour": "red"}, r"once_per\(\) takes no argument 'colour'$"),
        ({"expire": 5}, r"once_per\(\) takes no argument 'expire': `ttl`"),
        ({"timeout": None}, r"once_per\(\) .*timeout=None.*give seconds"),
        ({"ttl": "5"}, "ttl must be"),
    ],
)
def test_options_of_jobs(make: Any, options: dict[str, Any], pattern: str) -> None:
    with refused(pattern):
        make("memory://").once_per("15m", **{"name": "job", **options})


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        ({"lock_delay": -1}, "lock_delay must be between 0 and 86400 s"),
        ({"lock_delay": 86401}, "lock_delay must be between 0 and 86400 s"),
        ({"lock_delay": "5"}, "lock_delay must be a number of seconds"),
        ({"lock_delay": None}, "lock_delay must be a number of seconds"),
        ({"lock_delay": float("inf")}, "lock_delay must be a finite number"),
        ({"owner": ""}, "owner must be a name of 1 to 255 characters that its processes agree on, not ''"),
        ({"owner": "x" * 256}, "owner must be a name of 1 to 255 characters"),
        ({"owner": 7}, "owner must be a name"),
        ({"owner": b"job"}, "owner must be a name"),
        ({"owner": "\ud800"}, "owner .* is not valid Unicode"),
        ({"owner": "job", "reentrant": True}, "owner and reentrant=True do not go together"),
        ({"revocable": 1}, "revocable must be True or False"),
        ({"revocable": True, "renew": False}, "revocable needs renew=True"),
        ({"on_revoke": print, "renew": False}, "revocable needs renew=True"),
        ({"on_revoke": print, "revocable": False}, "on_revoke is never called with revocable=False"),
        ({"on_revoke": "event"}, "on_revoke must be a function that takes the lease"),
    ],
)
def test_delays_owners_and_requests(make: Any, options: dict[str, Any], pattern: str) -> None:
    client = make("memory://")

    for use in (client.lock, client.locked):
        with refused(pattern):
            use("a", **options)


def test_only_a_plain_lock_has_an_owner(make: Any) -> None:
    client = make("memory://")

    with refused(r"rwlock\(\) takes no owner: only a plain lock"):
        client.rwlock("a", owner="job")
    with refused(r"semaphore\(\) takes no owner"):
        client.semaphore("a", 2, owner="job")


@pytest.mark.parametrize("value", [b"7", 1.0, True])
def test_requests(value: Any) -> None:
    with holdfast.Client("memory://") as client:
        with refused("fence must be a whole number"):
            client.request_revoke("a", value)
        with refused("name must be a str"):
            client.request_revoke(value, 7)
