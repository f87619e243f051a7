"""`holdfast.celery` with real workers: busy locks, lost leases, killed children, duplicates of messages.

Hazards: two bodies of one key at the same time; a lock that a dead child holds; a message that is lost because another
one with its key runs; a key that runs twice because its message was delivered twice.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
import holdfast.celery
from tests.support.celery import Fleet, fleet, overlaps
from tests.support.intervals import report
from tests.support.processes import eventually
from tests.support.server_process import folder_in_memory

PROMPT = 15.0  # seconds: far more than a release takes on a busy machine, and half of a ttl of 30 s


@pytest.fixture(scope="module")
def workers() -> Iterator[Fleet]:
    """One worker with two processes, for all tests that do not end it."""
    with folder_in_memory() as folder, fleet(Path(folder)) as made:
        made.start_worker()
        yield made


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Fleet]:
    with fleet(tmp_path) as made:
        yield made


@pytest.fixture
def on_sqlite(tmp_path: Path) -> Iterator[Fleet]:
    with fleet(tmp_path, STORE_URL=f"sqlite://{tmp_path}/locks.db", TTL="30") as made:
        yield made


def result(sent: Any) -> Any:
    return sent.get(timeout=60)


def error(sent: Any) -> str:
    """The error of a failed task. Celery decodes it from JSON as an Exception, whose text has the name of the class."""
    raised = sent.get(timeout=60, propagate=False)
    assert sent.state == "FAILURE"
    return repr(raised)


def test_bodies_with_one_key_take_turns_and_busy_messages_do_not_count_as_retries(workers: Fleet) -> None:
    sent = [workers.program.requeued.delay("turns") for _ in range(12)]

    assert [result(message) for message in sent] == [0] * 12
    events = [event for event in workers.events("requeued") if event.key == "turns"]
    assert len(events) == 24
    assert overlaps(events, {}) == []


def test_a_busy_lock_fails_the_task_after_max_retries(workers: Fleet) -> None:
    with workers.program.client.lock("limited"):
        assert "AcquireTimeout" in error(workers.program.requeued_twice.delay("limited"))

    assert workers.events("requeued_twice") == []


def test_a_message_that_cannot_be_put_back_is_not_lost(workers: Fleet) -> None:
    with workers.program.client.lock("unsent"):
        sent = workers.program.unsent.delay("unsent")
        workers.wait_for("unsent", "begin")

    assert result(sent) == "done"


def test_a_busy_lock_ends_the_task_with_the_result_of_skipped(workers: Fleet) -> None:
    with workers.program.client.lock("skipped"):
        assert result(workers.program.skipping.delay("skipped")) == "busy"

    assert result(workers.program.skipping.delay("skipped")) == "done"


def test_a_task_waits_for_a_busy_lock(workers: Fleet) -> None:
    with workers.program.client.lock("waiting"):
        sent = workers.program.waiting.delay("waiting")
        eventually(lambda: len(workers.program.client.inspect("waiting").waiters) == 1)

    assert result(sent) == "done"


def test_retries_for_errors_and_for_a_busy_lock_are_counted_apart(workers: Fleet) -> None:
    with workers.program.client.lock("unlucky"):
        sent = workers.program.unlucky.delay("unlucky")
        eventually(lambda: sent.state == "RETRY")

    retries, fence = result(sent)
    assert retries == 2
    assert fence > 0
    assert len(workers.events("unlucky", "end")) == 3


def test_a_function_makes_one_client_in_each_process(workers: Fleet) -> None:
    pids = {result(workers.program.late_client.delay(f"late-{number}")) for number in range(6)}

    opened = [event.pid for event in workers.events("open_client")]
    assert sorted(opened) == sorted(pids)


@pytest.mark.parametrize("where", ["body", "holdfast"])
def test_a_lost_lease_interrupts_the_body(workers: Fleet, where: str) -> None:
    client, key = workers.program.client, f"lost-{where}"
    with client.lock("other"):
        sent = workers.program.loses.delay(key, where == "holdfast")
        workers.wait_for("loses", "begin")
        eventually(lambda: client.inspect(key).holders != ())
        if where == "holdfast":
            eventually(lambda: len(client.inspect("other").waiters) == 1)
        client.break_lock(key, fence=client.inspect(key).holders[0].fence)
        if where == "body":
            assert "LockLost" in error(sent)

    assert "LockLost" in error(sent)
    assert workers.events("loses", "end") == []


def test_a_hard_time_limit_releases_the_lock(on_sqlite: Fleet) -> None:
    """The store knows that the child is dead, so the lock is free long before the ttl of 30 s ends."""
    on_sqlite.start_worker(concurrency=1)
    sent = on_sqlite.program.too_long.delay("a")
    on_sqlite.wait_for("too_long", "begin")

    assert "TimeLimitExceeded" in error(sent)
    with on_sqlite.program.client.lock("a", timeout=PROMPT):
        pass


def test_a_message_of_a_killed_child_runs_again_at_once_where_the_store_knows_of_the_death(on_sqlite: Fleet) -> None:
    on_sqlite.start_worker(concurrency=1)
    sent = on_sqlite.program.waiting.delay("a", 3)
    on_sqlite.wait_for("waiting", "begin")
    on_sqlite.kill_child(on_sqlite.events("waiting")[0].pid)
    on_sqlite.wait_for("waiting", "begin", 2)

    assert result(sent) == "done"
    first, second, *_ = on_sqlite.events("waiting", "begin")  # the broker may deliver the message again
    assert second.at - first.at < 30
    assert overlaps(on_sqlite.events("waiting"), on_sqlite.killed) == []


def test_a_worker_that_is_killed_and_restarted_runs_its_message_again_after_the_ttl(own: Fleet) -> None:
    """The broker delivers it again after the visibility timeout."""
    worker = own.start_worker(concurrency=1)
    sent = own.program.requeued.delay("a", 3)
    own.wait_for("requeued", "begin")
    own.kill_worker(worker)
    own.start_worker(concurrency=1)

    assert result(sent) == 0
    assert overlaps(own.events("requeued"), own.killed) == []
    assert len(own.events("requeued", "end")) == 1


def test_a_message_that_is_delivered_again_while_its_task_runs_does_not_overlap(own: Fleet) -> None:
    """The body takes longer than the visibility timeout of 2 s, so there is a second run after the first."""
    own.start_worker(concurrency=2)
    own.program.requeued.delay("a", 5)

    own.wait_for("requeued", "begin", 2)
    assert [event.state for event in own.events("requeued")] == ["begin", "end", "begin"]


def test_a_worker_with_gevent_takes_turns(own: Fleet) -> None:
    pytest.importorskip("gevent")
    own.start_worker(pool="gevent", concurrency=10)
    sent = [own.program.requeued.delay(f"turns-{number % 2}") for number in range(20)]
    sent += [own.program.waiting.delay("waiting", 0.1) for _ in range(5)]

    assert [result(message) for message in sent] == [0] * 20 + ["done"] * 5
    assert_turns(own, "requeued", 20)
    assert_turns(own, "waiting", 5)


def test_a_lost_lease_in_a_worker_with_gevent_fails_the_task_at_a_check_or_at_its_end(own: Fleet) -> None:
    """No greenlet can be interrupted: a body stops when it checks its lease, and otherwise runs to its end."""
    pytest.importorskip("gevent")
    own.start_worker(pool="gevent", concurrency=10)
    task, client = own.program.loses_in_greenlet, own.program.client
    sent = {key: task.delay(key, key == "checks") for key in ("checks", "goes-on")}
    beside = own.program.requeued.delay("beside", 3)
    own.wait_for("loses_in_greenlet", "begin", 2)
    for key in sent:
        client.break_lock(key, fence=client.inspect(key).holders[0].fence)

    assert all("LockLost" in error(message) for message in sent.values())
    assert [event.key for event in own.events("loses_in_greenlet", "end")] == ["goes-on"]
    assert result(beside) == 0  # the lease of another greenlet is not lost


def assert_turns(fleet: Fleet, task: str, number: int) -> None:
    """Greenlets of one process: begin and end alternate. There are more if the broker delivers a message again."""
    assert len(fleet.events(task, "end")) >= number
    events = fleet.events(task)
    for key in {event.key for event in events}:
        of_key = [event.state for event in events if event.key == key]
        assert of_key == (["begin", "end"] * len(of_key))[: len(of_key)]


# ── apply_once ───────────────────────────────────────────────────────────────────────────────────────────────────


def apply_once(fleet: Fleet, key: str, retention: float = 600, **arguments: Any) -> Any:
    return holdfast.celery.apply_once(fleet.program.charge, key, retention, args=[key], kwargs=arguments)


def ends(fleet: Fleet, key: str) -> int:
    return len([event for event in fleet.events("charge", "end") if event.key == key])


def test_duplicate_calls_queue_one_message_and_get_its_result(own: Fleet) -> None:
    sent = [apply_once(own, "a") for _ in range(5)]
    assert own.queued() == 1
    own.start_worker(concurrency=1)

    assert [result(message) for message in sent] == [{"receipt": "a"}] * 5
    assert result(apply_once(own, "a")) == {"receipt": "a"}
    assert ends(own, "a") == 1


def test_copies_of_a_message_run_once_and_keep_its_result(own: Fleet) -> None:
    sent = [apply_once(own, "a", seconds=1), apply_unstorable(own)]
    own.duplicate_messages(5)
    own.start_worker(concurrency=2)

    eventually(own.is_idle, within=60)

    assert result(sent[0]) == {"receipt": "a"}
    assert result(sent[1]) == "x" * (1 << 17)
    assert ends(own, "a") == 1
    assert len(own.events("unstorable", "end")) == 1


def test_a_message_that_is_delivered_again_while_its_task_runs_completes_once(own: Fleet) -> None:
    own.start_worker(concurrency=2)
    sent = apply_once(own, "a", seconds=5)
    own.wait_for("charge", "begin")
    eventually(lambda: sent.state == "RETRY")  # of the second delivery

    assert result(sent) == {"receipt": "a"}
    eventually(own.is_idle, within=60)
    assert ends(own, "a") == len(own.events("charge", "begin")) == 1
    assert result(sent) == {"receipt": "a"}


def apply_unstorable(fleet: Fleet) -> Any:
    return holdfast.celery.apply_once(fleet.program.unstorable, "a", args=["a"])


def test_a_key_whose_run_failed_is_queued_again(workers: Fleet) -> None:
    failed = apply_once(workers, "fails", failures=-1)
    assert "ValueError" in error(failed)
    eventually(lambda: apply_once(workers, "fails").id != failed.id)

    assert result(apply_once(workers, "fails")) == {"receipt": "fails"}
    assert ends(workers, "fails") == 2


def test_a_run_that_is_retried_keeps_its_key(workers: Fleet) -> None:
    sent = apply_once(workers, "retried", failures=2)

    assert result(sent) == {"receipt": "retried"}
    assert apply_once(workers, "retried").id == sent.id
    assert ends(workers, "retried") == 3


def test_a_message_that_the_broker_lost_blocks_its_key_until_retention(own: Fleet) -> None:
    lost = apply_once(own, "a", retention=2)
    own.lose_messages()
    assert apply_once(own, "a", retention=2).id == lost.id
    assert own.queued() == 0

    eventually(lambda: apply_once(own, "a", retention=2).id != lost.id)

    assert own.queued() == 1


COPIES = 4
KEYS = int(os.environ.get("HOLDFAST_TEST_KEYS", "4"))  # 100 for 400 messages of each task, about two minutes


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_duplicates_complete_once_and_never_overlap_while_children_and_workers_are_killed(own: Fleet) -> None:
    keys = [f"key-{number}" for number in range(KEYS)]
    for key in keys:
        apply_once(own, key, seconds=0.1, retention=3600)
    own.duplicate_messages(COPIES - 1)
    for key in keys * COPIES:
        own.program.requeued.delay(key, 0.1)
    assert own.queued() == 2 * KEYS * COPIES
    worker, _ = [own.start_worker(concurrency=2) for _ in range(2)]

    first, later = range(4, 2 * KEYS, max(4, KEYS // 10)), range(2 * KEYS, KEYS * COPIES, KEYS)
    for number in (*first, *later):  # the body with this number begins for certain
        own.wait_for("", "begin", number, within=300)
        own.kill_child(own.events("", "begin")[-1].pid)
        if number == later[0]:
            own.kill_worker(worker)
            own.start_worker(concurrency=2)

    def is_done(key: str) -> bool:
        info = own.program.client.once(f"program.charge:{key}").inspect()
        return info is not None and info.state == "done"

    def missing() -> int:
        """The messages of `requeued` that have not run to their end."""
        ends = Counter(event.key for event in own.events("requeued", "end"))
        return sum(max(0, COPIES - ends[key]) for key in keys)

    # A worker takes a message from the queue before it notes that it is not acknowledged. So the queue can look idle
    # for a moment, and the worker that was killed may have lost one message.
    eventually(lambda: own.is_idle() and missing() <= 1 and all(map(is_done, keys)), within=900)

    assert overlaps(own.events("charge"), own.killed) == []
    assert overlaps(own.events("requeued"), own.killed) == []
    assert len(own.killed) > len(later)
    for key in keys:
        assert own.program.client.once(f"program.charge:{key}").inspect().value["result"] == {"receipt": key}
        completions = [event for event in own.events("charge", "end") if event.key == key]
        # A run that is killed between its last line and its record is no completion.
        assert [event for event in completions[:-1] if event.pid not in own.killed] == []
    report(f"{2 * KEYS * COPIES} messages, {KEYS} keys, {len(own.killed)} processes killed, {KEYS} completions")
