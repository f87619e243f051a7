"""Bad input is refused at construction, with the name of the argument and what to do instead."""

from __future__ import annotations

import os
import re
import subprocess
import sys
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
    with holdfast.Client("memory://") as client, refused("acquire.*'blocking'.*timeout=0"):
        client.lock("a").acquire(blocking=False)


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
