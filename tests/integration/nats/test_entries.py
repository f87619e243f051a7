"""Hazard: entries of a bucket that expire, are deleted or written by other programs, or belong to another bucket."""

from __future__ import annotations

import contextlib
import json
import threading

import pytest
from tests.support.verbs import Verbs

import holdfast
from holdfast.core.tickets import Granted
from tests.integration.conftest import OpenClient
from tests.support.nats.servers import Server
from tests.support.processes import eventually


def test_an_expired_lease_leaves_no_marker_that_could_replace_the_next_one(
    server: Server, bucket: str, url: str, open_client: OpenClient
) -> None:
    # The server replaces an entry without our header by a marker, without a condition (protocol/bucket.py).
    with contextlib.closing(Verbs(url)) as dead:
        granted = dead.try_acquire(dead.ticket("a", ttl=1.0))
    assert isinstance(granted, Granted)
    server.put(bucket, "plain", b"", Nats_TTL=1)

    eventually(lambda: server.entry(bucket, "lock.a") is None)
    eventually(lambda: "Nats-Marker-Reason" in server.entry(bucket, "plain")["headers"])

    after = open_client(url).lock("a").acquire(timeout=0)
    assert after is not None
    assert after.fence > granted.fence
    after.release()


def test_a_lease_lasts_for_its_ttl_and_the_clock_skew(server: Server, bucket: str, open_client: OpenClient) -> None:
    lease = open_client(f"{server.url}?bucket={bucket}&clock_skew=5").lock("a", ttl=10.5).acquire()

    assert lease is not None
    assert server.entry(bucket, "lock.a")["headers"]["Nats-TTL"] == "16"
    lease.release()


def test_a_waiter_is_woken_by_a_release_and_not_by_a_poll(url: str, open_client: OpenClient) -> None:
    holder, waiter = open_client(url), open_client(url)
    waits = []
    for _ in range(10):
        lease = holder.lock("a").acquire()
        assert lease is not None
        done = threading.Event()

        def take(done: threading.Event = done) -> None:
            with waiter.lock("a", timeout=30) as taken:
                waits.append(taken.fence)
            done.set()

        thread = threading.Thread(target=take)
        thread.start()
        assert not done.wait(0.3)
        lease.release()
        thread.join()

    assert waits == sorted(waits)


def test_an_entry_of_another_program_blocks_the_lock(
    server: Server, bucket: str, url: str, open_client: OpenClient
) -> None:
    client = open_client(url)
    client.lock("warm").acquire().release()
    server.put(bucket, "lock.a", b"mine")

    assert client.lock("a").acquire(timeout=0) is None
    assert [str(holder) for holder in client.inspect("a").holders] == ["another program"]

    server.put(bucket, "lock.a", b"", KV_Operation="DEL")
    lease = client.lock("a").acquire(timeout=0)
    assert lease is not None
    lease.release()


def test_a_purge_by_another_program_ends_the_lease(
    server: Server, bucket: str, url: str, open_client: OpenClient
) -> None:
    lease = open_client(url).lock("a", ttl=3).acquire()
    assert lease is not None

    server.put(bucket, "lock.a", b"", KV_Operation="PURGE", Nats_Rollup="sub")

    assert lease.wait_lost(10)


def test_fences_grow_when_the_bucket_is_deleted_and_created_again(
    server: Server, bucket: str, url: str, open_client: OpenClient
) -> None:
    client = open_client(url)
    lease = client.lock("a").acquire()
    assert lease is not None

    server.call(f"$JS.API.STREAM.DELETE.KV_{bucket}")

    def is_granted() -> bool:
        nonlocal after
        try:
            after = client.lock("b").acquire(timeout=0)
        except holdfast.BackendUnavailable:
            return False
        return after is not None

    after: holdfast.Lease | None = None
    eventually(is_granted)
    assert after is not None
    assert after.fence > lease.fence


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"allow_msg_ttl": False, "subject_delete_marker_ttl": 0}, "allow_msg_ttl"),
        ({"subject_delete_marker_ttl": 0}, "subject_delete_marker_ttl"),
        ({"max_msgs_per_subject": 5}, "max_msgs_per_subject"),
        ({"storage": "memory"}, "storage"),
        ({"republish": None}, "republish"),
    ],
)
def test_a_bucket_whose_settings_rule_out_locks_is_refused(  # noqa: PLR0917 (fixtures)
    server: Server, bucket: str, url: str, open_client: OpenClient, change: dict[str, object], named: str
) -> None:
    open_client(url).lock("a").acquire().release()
    settings = server.stream(bucket)["config"]
    server.call(f"$JS.API.STREAM.DELETE.KV_{bucket}")
    created = server.call(f"$JS.API.STREAM.CREATE.KV_{bucket}", json.dumps({**settings, **change}).encode())
    assert "error" not in created

    with pytest.raises(holdfast.ConfigurationError, match=named):
        open_client(url).lock("a").acquire()


def test_reading_creates_no_bucket(server: Server, bucket: str, url: str, open_client: OpenClient) -> None:
    client = open_client(url)

    assert client.locks() == []
    assert not client.inspect("a").holders
    assert server.stream(bucket)["error"]["code"] == 404
