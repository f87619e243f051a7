"""Two versions of holdfast on one store: they exclude each other, hand over, and share fences, permits and records.

Each release of releases.txt is built from its commit and runs in a process of its own, beside the present version. With
threads the older version creates the tables or nodes of the store; with asyncio the present one does.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import holdfast
from holdfast.primitives import Primitive
from tests.formats.stores import NEW, STORES, has
from tests.support.processes import Refused, Worker, WorkerPool
from tests.support.releases import Release, releases, unpack

pytestmark = pytest.mark.slow

WORKER = os.path.join(os.path.dirname(__file__), "worker.py")
FORMAT_1 = Release("0.1.0", "55a96d3d21db85381e42486b8429cfd91ed000fa")  # never published
PAUSE = 0.2  # seconds in which a waiter would have to acquire a lock that is not free
DIRECTIONS = pytest.mark.parametrize("first", ["old", "new"])

_names = (f"lock {number}" for number in itertools.count())


class Pair(NamedTuple):
    """A release beside the present version, on a store, both with threads or both with asyncio."""

    release: Release
    store: str
    runtime: str


class Versions(NamedTuple):
    """A worker with each version, on the same store."""

    pair: Pair
    old: Worker
    new: Worker

    def beginning_with(self, first: str) -> tuple[Worker, Worker]:
        """Return both workers, `first` ("old" or "new") first."""
        return (self.old, self.new) if first == "old" else (self.new, self.old)


def pairs_of(release: Release, stores: Iterable[str]) -> list[Pair]:
    return [Pair(release, store, runtime) for store, runtime in itertools.product(stores, ("threads", "asyncio"))]


# Both runtimes use one format, but with each of them another version creates the tables or nodes of the store. Stores
# with tables or nodes are tested with both runtimes, and other stores with one of them unless `--all-methods` is given.
WITH_TABLES = {"sqlite", "postgresql", "mysql", "mysql-row", "mysql-version", "zookeeper"}


def is_extra(pair: Pair) -> bool:
    return pair.store not in WITH_TABLES and pair.runtime != ("threads", "asyncio")[[*STORES].index(pair.store) % 2]


def on_stores_with(primitive: Primitive) -> pytest.MarkDecorator:
    """Run on all releases, each with the stores that support this primitive."""
    stores = [store for store in STORES if has(store, primitive) and store not in NEW]
    return pytest.mark.cases([pair for release in releases() for pair in pairs_of(release, stores)])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mark = metafunc.definition.get_closest_marker("cases")
    assert mark is not None
    cases = [
        pytest.param(
            pair,
            id=f"{pair.release.version}-{pair.store}-{pair.runtime}",
            marks=[pytest.mark.extra] if is_extra(pair) else [],
        )
        for pair in mark.args[0]
    ]
    metafunc.parametrize("versions", cases, indirect=True, scope="module")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Release], Path]:
    """Build each release once."""
    return functools.cache(lambda release: unpack(release, tmp_path_factory.mktemp("release")))


@pytest.fixture(scope="module")
def versions(
    request: pytest.FixtureRequest,
    installed: Callable[[Release], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Versions]:
    pair: Pair = request.param
    folder = installed(pair.release)
    url = STORES[pair.store](tmp_path_factory.mktemp("store"))
    with WorkerPool(WORKER) as pool:
        old = pool.start(pair.runtime, url, under=["env", f"PYTHONPATH={folder}"])
        new = pool.start(pair.runtime, url)
        assert Path(old.call("where")["file"]).is_relative_to(folder)
        assert new.call("where") == {"file": holdfast.__file__}
        creator = old if pair.runtime == "threads" else new
        creator.call("acquire", name="first")
        creator.call("release", name="first")

        yield Versions(pair, old, new)

        old.call("close")
        new.call("close")


@pytest.fixture
def name() -> str:
    return next(_names)


@DIRECTIONS
@on_stores_with(Primitive.LOCK)
def test_a_lock_changes_hands_between_versions_and_is_never_held_twice(
    versions: Versions, first: str, name: str
) -> None:
    holder, waiter = versions.beginning_with(first)
    fences = []

    for _ in range(3):  # it changes hands in both directions
        fences.append(holder.call("acquire", name=name)["fence"])
        assert waiter.call("acquire", name=name, timeout=0) == {"fence": None}
        waiter.send("acquire", name=name)
        assert waiter.is_silent(PAUSE)
        holder.call("renew", name=name)
        holder.call("release", name=name)
        fences.append(waiter.receive()["fence"])
        assert holder.call("acquire", name=name, timeout=0) == {"fence": None}
        waiter.call("release", name=name)
        holder, waiter = waiter, holder

    assert fences == sorted(set(fences))


@DIRECTIONS
@on_stores_with(Primitive.RWLOCK)
def test_readers_of_both_versions_share_a_lock_and_exclude_writers(versions: Versions, first: str, name: str) -> None:
    worker, other = versions.beginning_with(first)

    worker.call("acquire", name=name, kind="read")
    assert other.call("acquire", name=name, kind="read", timeout=0)["fence"]
    worker.call("release", name=name)

    assert worker.call("acquire", name=name, kind="write", timeout=0) == {"fence": None}
    worker.send("acquire", name=name, kind="write")
    assert worker.is_silent(PAUSE)
    other.call("release", name=name)
    worker.receive()
    assert other.call("acquire", name=name, kind="read", timeout=0) == {"fence": None}
    worker.call("release", name=name)


@DIRECTIONS
@on_stores_with(Primitive.SEMAPHORE)
def test_permits_are_counted_across_versions(versions: Versions, first: str, name: str) -> None:
    worker, other = versions.beginning_with(first)
    worker.call("acquire", name=name, kind="permit")

    assert other.call("acquire", name=name, kind="permit", timeout=0)["fence"]
    assert worker.call("acquire", name=name, kind="permit", timeout=0) == {"fence": None}
    assert other.call("acquire", name=name, kind="permit", timeout=0) == {"fence": None}

    worker.call("release", name=name)
    other.call("release", name=name)


@DIRECTIONS
@on_stores_with(Primitive.LOCK)
def test_an_operator_sees_the_holder_of_the_other_version(versions: Versions, first: str, name: str) -> None:
    holder, other = versions.beginning_with(first)
    fence = holder.call("acquire", name=name)["fence"]

    info = other.call("inspect", name=name)

    assert info["fences"] == [fence]
    assert info["pids"] in ([holder.pid], [0])  # the plain methods of Redis store no process
    holder.call("release", name=name)


@DIRECTIONS
@on_stores_with(Primitive.TRANSFER)
def test_a_lease_is_transferred_to_the_other_version(versions: Versions, first: str, name: str) -> None:
    giver, taker = versions.beginning_with(first)
    fence = giver.call("acquire", name=name)["fence"]

    adopted = taker.call("adopt", text=giver.call("transfer", name=name)["text"])

    assert adopted["fence"] > fence
    assert giver.call("acquire", name=name, timeout=0) == {"fence": None}
    taker.call("release", name=name)


@DIRECTIONS
@on_stores_with(Primitive.ONCE)
def test_a_record_of_once_is_read_by_the_other_version(versions: Versions, first: str, name: str) -> None:
    runner, reader = versions.beginning_with(first)

    ran: dict[str, Any] = runner.call("once", key=name)

    assert ran == {"pid": runner.pid, "ran": True}
    assert reader.call("once", key=name) == {"pid": runner.pid, "ran": False}


@DIRECTIONS
@on_stores_with(Primitive.ONCE_PER)
def test_a_period_that_one_version_has_used_is_skipped_by_the_other(versions: Versions, first: str, name: str) -> None:
    runner, other = versions.beginning_with(first)

    assert runner.call("once_per", name=name) == {"pid": runner.pid}
    assert other.call("once_per", name=name) == {"pid": None}


@pytest.mark.cases(pairs_of(FORMAT_1, ["redis"]))
def test_a_lock_is_refused_when_another_version_uses_it_in_an_unknown_format(versions: Versions, name: str) -> None:
    versions.old.call("acquire", name=name)
    versions.new.call("acquire", name=f"{name}, new")

    with pytest.raises(Refused, match=r"NameConflict: .* a version of holdfast before 0\.2 uses it") as refusal:
        versions.new.call("acquire", name=name, timeout=0)
    with pytest.raises(Refused, match="NameConflict"):
        versions.old.call("acquire", name=f"{name}, new", timeout=0)

    assert name in refusal.value.message
    versions.old.call("renew", name=name)
    versions.new.call("renew", name=f"{name}, new")
