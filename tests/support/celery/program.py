"""Tasks for the tests of `holdfast.celery`: workers run this file as the module `program`, tests load it to send tasks.

The file `events` of the folder gets a line for each begin and end of a body: task, key, state, process, time.
"""

from __future__ import annotations

import os
import time
from typing import Any

import celery
import holdfast
import holdfast.celery

FOLDER = os.environ["FOLDER"]
PREFIX = os.environ["KEY_PREFIX"]
VISIBILITY_TIMEOUT = 2  # seconds

app = celery.Celery("program", broker=os.environ["BROKER_URL"], backend=os.environ["BROKER_URL"], set_as_current=False)
app.conf.broker_transport_options = {
    "global_keyprefix": PREFIX,
    "visibility_timeout": VISIBILITY_TIMEOUT,
    "unacked_restore_interval": 1,  # seconds between two searches for messages that are not acknowledged in time
    "unacked_restore_throttle": 1,
    "unacked_mutex_expire": 2,
}
app.conf.result_backend_transport_options = {"global_keyprefix": PREFIX}
app.conf.task_publish_retry = False
app.conf.worker_prefetch_multiplier = 1
app.conf.broker_connection_retry_on_startup = True
app.conf.worker_hijack_root_logger = False
app.conf.task_acks_late = True
app.conf.task_reject_on_worker_lost = True
app.conf.worker_proc_alive_timeout = 60

client = holdfast.Client(os.environ["STORE_URL"], ttl=float(os.environ.get("TTL", "3")))


def write(task: str, key: str, state: str) -> None:
    line = f"{task} {key} {state} {os.getpid()} {time.clock_gettime(time.CLOCK_BOOTTIME)}\n"
    events = os.open(f"{FOLDER}/events", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(events, line.encode())  # one call: lines of several processes do not mix
    os.close(events)


def work(task: str, key: str, seconds: float = 0.02) -> None:
    write(task, key, "begin")
    try:
        time.sleep(seconds)
    except BaseException:
        write(task, key, "interrupted")
        raise
    write(task, key, "end")


@app.task(bind=True)
@holdfast.celery.exclusive(client, "{key}", countdown=0.05)
def requeued(self: Any, key: str, seconds: float = 0.02) -> int:
    work("requeued", key, seconds)
    return int(self.request.retries)


@app.task
@holdfast.celery.exclusive(client, "{key}", countdown=0.05, max_retries=2)
def requeued_twice(key: str) -> None:
    work("requeued_twice", key)


class Unsent(celery.Task):  # type: ignore[type-arg]  # Celery 5.5 has no type parameters
    """A worker cannot send its first message."""

    def apply_async(self, *args: Any, **options: Any) -> Any:
        if self.request.id is not None and not os.path.exists(f"{FOLDER}/unsent"):
            write("unsent", "-", "begin")
            with open(f"{FOLDER}/unsent", "w"):
                raise ConnectionError("the broker is gone")
        return super().apply_async(*args, **options)


@app.task(base=Unsent)
@holdfast.celery.exclusive(client, "{key}", countdown=0.05)
def unsent(key: str) -> str:
    return "done"


@app.task
@holdfast.celery.exclusive(client, "{key}", busy="skip", skipped="busy")
def skipping(key: str) -> str:
    work("skipping", key)
    return "done"


@app.task
@holdfast.celery.exclusive(client, "{key}", busy="wait", timeout=60)
def waiting(key: str, seconds: float = 0.02) -> str:
    work("waiting", key, seconds)
    return "done"


@app.task(bind=True, autoretry_for=(ConnectionError,), retry_kwargs={"countdown": 0}, max_retries=2)
@holdfast.celery.exclusive(client, "{key}", countdown=0.05, lease="lease")
def unlucky(self: Any, lease: holdfast.Lease, key: str) -> list[int]:
    """Fails twice. `max_retries` allows two retries for errors, and any number for a busy lock."""
    lease.check()
    work("unlucky", key)
    if self.request.retries < 2:
        raise ConnectionError(key)
    return [self.request.retries, lease.fence]


def open_client() -> holdfast.Client:
    write("open_client", "-", "begin")
    return holdfast.Client(os.environ["STORE_URL"])


@app.task
@holdfast.celery.exclusive(open_client, "{key}", busy="skip")
def late_client(key: str) -> int:
    work("late_client", key)
    return os.getpid()


@app.task(time_limit=2, acks_late=False, reject_on_worker_lost=False)
@holdfast.celery.exclusive(client, "{key}", ttl=30)
def too_long(key: str) -> None:
    work("too_long", key, 60)


@app.task(reject_on_worker_lost=False, acks_late=False)
@holdfast.celery.exclusive(client, "{key}", ttl=2)
def loses(key: str, inside: bool) -> None:  # noqa: FBT001 - an argument of a message
    write("loses", key, "begin")
    if inside:  # the loss interrupts the line after this block, not code of holdfast
        with client.lock("other", timeout=60):
            pass
    time.sleep(60)
    write("loses", key, "end")


@app.task(reject_on_worker_lost=False, acks_late=False)
@holdfast.celery.exclusive(client, "{key}", ttl=2, lease="lease")
def loses_in_greenlet(lease: holdfast.Lease, key: str, checks: bool) -> None:  # noqa: FBT001 - as above
    """With `checks`, the task stops at the next check after the loss. Without, it runs for 0.5 s after the loss."""
    write("loses_in_greenlet", key, "begin")
    while not lease.lost or checks:
        time.sleep(0.02)
        if checks:
            lease.check()
    time.sleep(0.5)
    write("loses_in_greenlet", key, "end")


@app.task(bind=True, autoretry_for=(ConnectionError,), retry_kwargs={"countdown": 0}, max_retries=2)
@holdfast.celery.once(client, countdown=0.2)
@holdfast.celery.exclusive(client, "body:{key}", countdown=0.2)
def charge(self: Any, key: str, seconds: float = 0.02, failures: int = 0) -> dict[str, Any]:
    work("charge", key, seconds)
    if failures > self.request.retries:
        raise ConnectionError(key)
    if failures < 0:
        raise ValueError(key)
    return {"receipt": key}


@app.task
@holdfast.celery.once(client)
def unstorable(key: str) -> str:
    work("unstorable", key)
    return "x" * (1 << 17)


@app.task(acks_late=False, reject_on_worker_lost=False)
def ship(key: str, text: str) -> None:
    """Adopts the lease of an HTTP handler, and keeps it for as long as the file `gate` exists."""
    try:
        lease = client.adopt(text)
    except holdfast.NotHeld:
        write("ship", key, "refused")
        return
    write("ship", key, f"adopted-{lease.fence}")
    while os.path.exists(f"{FOLDER}/gate"):
        lease.check()
        time.sleep(0.01)
    lease.release()
    write("ship", key, "end")
