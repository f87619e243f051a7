"""Hazard: a page shows an old state as if it were the present one, or each open page adds load to the store."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import Any
from urllib.parse import quote

import pytest

from holdfast.dashboard import feed as feed_module
from tests.integration.dashboard.conftest import Serve, Site, Store, Stream, deadlock
from tests.support.processes import Worker, eventually


def has(lock: str, **fields: Any) -> Any:
    def condition(message: dict[str, Any]) -> bool:
        return any(
            row["name"] == lock and all(row[field] == value for field, value in fields.items())
            for row in message.get("locks", ())
        )

    return condition


def test_the_first_message_has_all_locks_and_the_next_ones_only_the_differences(
    site: Site, store: Store, holder: Worker
) -> None:
    fence = holder.call("hold", lock="a")["fence"]
    holder.call("hold", lock="b")
    with site.stream() as stream:
        first = stream.next()
        holder.call("hold", lock="c")
        acquired = stream.until(has("c"))
        holder.call("wait", lock="a")
        queued = stream.until(has("a", waiters=1))
        holder.call("release", lock="b")
        released = stream.until(lambda message: "b" in message.get("gone", ()))

    assert first["full"]
    assert [row["name"] for row in sorted(first["locks"], key=lambda row: str(row["name"]))] == ["a", "b"]
    assert (row := first["locks"][0])["holder_count"] == 1
    assert {row["holders"][0]["fence"] for row in first["locks"]} >= {str(fence)}
    assert row["holders"][0]["expires_at"] > first["now"]
    for message, names in ((acquired, ["c"]), (queued, ["a"])):
        assert "full" not in message
        assert [row["name"] for row in message["locks"]] == names
    assert [change["kind"] for change in acquired["changes"]] == ["acquired"]
    assert [change["kind"] for change in released["changes"]] == ["released"]


def test_a_page_that_connects_again_gets_only_the_differences(site: Site, holder: Worker) -> None:
    holder.call("hold_many", locks=["a", "b"])
    with site.stream() as stream:
        stream.next()
    holder.call("release", lock="a")
    holder.call("hold", lock="c")

    with site.stream(last_event_id=stream.last_id) as again:
        names: list[str] = []
        while "c" not in names:
            message = again.next()
            assert "full" not in message
            names += [row["name"] for row in message.get("locks", ())]
    with site.stream(last_event_id="0badc0de-1") as other:
        assert other.next()["full"]

    assert names == ["c"]


def test_the_page_of_a_lock_gets_its_queue_meta_and_past_holders(site: Site, store: Store, holder: Worker) -> None:
    name = "order/42?x=<b>"
    first_fence = holder.call("hold", lock=name, meta={"order": 2**60, "text": "<i>"})["fence"]
    holder.call("wait", lock=name)
    store.await_waiters(name, 1)
    with site.stream(f"?lock={quote(name)}") as stream:
        before = stream.until(lambda message: message.get("lock", {}).get("waiters"))["lock"]
        holder.call("release", lock=name)
        after = stream.until(lambda message: message.get("lock", {}).get("past"))["lock"]

    assert (before["name"], before["holders"][0]["fence"]) == (name, str(first_fence))
    assert before["holders"][0]["meta"] == [["order", str(2**60)], ["text", "<i>"]]
    assert (before["waiters"][0]["agent"], before["waiter_count"]) == ("waiting", 1)
    assert [lease["fence"] for lease in after["past"]] == [str(first_fence)]
    assert int(after["holders"][0]["fence"]) > first_fence


def test_the_page_of_a_free_lock_shows_it_as_free(site: Site, holder: Worker) -> None:
    holder.call("hold", lock="other")
    with site.stream("?lock=free") as stream:
        lock = stream.next()["lock"]

    assert (lock["holders"], lock["waiters"]) == ([], [])


def test_a_deadlock_is_a_cycle_of_the_graph(site: Site, store: Store) -> None:
    with deadlock(store.client):
        with site.stream("?view=waits") as stream:
            message = stream.until(lambda message: message["cycles"])
            graph = (message if "waits" in message else stream.until(lambda message: "waits" in message))["waits"]
        with site.stream() as table:
            rows = table.until(lambda message: any(row["in_cycle"] for row in message.get("locks", ())))["locks"]

    assert len(graph["nodes"]) == 2
    assert all(arrow["cycle"] for arrow in graph["arrows"])
    assert {edge["lock"] for edge in graph["cycles"][0]} == {"a", "b"}
    assert {row["name"] for row in rows if row["in_cycle"]} == {"a", "b"}


def test_an_unavailable_store_is_reported_and_the_pages_recover(site: Site, store: Store, holder: Worker) -> None:
    holder.call("hold", lock="a")
    with site.stream() as stream:
        stream.next()
        store.path.rename(store.path.with_suffix(".away"))
        store.path.mkdir()
        problem = stream.until(lambda message: message["unavailable"])
        assert site.request("/api/locks").status == 503
        store.path.rmdir()
        store.path.with_suffix(".away").rename(store.path)
        stream.until(lambda message: not message["unavailable"])

    assert "locks.db" in problem["unavailable"]
    assert problem["read_at"] <= problem["now"]
    assert [lock["lock"] for lock in site.request("/api/locks").json] == ["a"]


def test_one_monitor_serves_all_pages_and_ends_after_the_last(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, holder: Worker
) -> None:
    monkeypatch.setattr(feed_module, "LINGER", 0.2)
    holder.call("hold", lock="a")
    site = serve()

    def pollers() -> int:
        return sum(thread.name == "holdfast dashboard" for thread in threading.enumerate())

    assert pollers() == 0
    with ExitStack() as stack:
        streams = [stack.enter_context(site.stream(query)) for query in ("", "", "?lock=a", "?view=waits")]
        versions = {stream.last_id for stream in streams if stream.next()}
        assert pollers() == 1
        assert len({version.partition("-")[0] for version in versions}) == 1  # of one monitor
    eventually(lambda: pollers() == 0)
    with site.stream() as stream:
        assert has("a")(stream.next())
        assert pollers() == 1


def test_a_stream_ends_by_itself_so_that_the_server_can_stop(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.dashboard.app._STREAM_SECONDS", 0.5)
    began = time.monotonic()
    with site.stream() as stream, pytest.raises(EOFError):
        read_all(stream)
    assert time.monotonic() - began > 0.4


def read_all(stream: Stream) -> None:
    while True:
        stream.next()


def test_an_unknown_view_is_refused(site: Site) -> None:
    assert site.request("/api/stream?view=everything").status == 404
