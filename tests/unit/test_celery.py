"""The arguments of `holdfast.celery`, and tasks that run in this process. tests/integration/celery has real workers."""

from __future__ import annotations

import os
import signal
import threading
import uuid
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast

celery = pytest.importorskip("celery")

from holdfast.celery import apply_once, exclusive, once  # noqa: E402 - it needs Celery
from tests.support.processes import eventually  # noqa: E402 - as above


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def client(url: str) -> Iterator[holdfast.Client]:
    with holdfast.Client(url) as client:
        yield client


@pytest.fixture
def app() -> Any:
    app = celery.Celery("unit", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.task_always_eager = True
    app.conf.task_store_eager_result = True
    return app


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"busy": "raise"}, "busy must be 'retry', 'skip' or 'wait', not 'raise'"),
        ({"busy": "wait"}, "busy='wait' needs timeout="),
        ({"busy": "skip", "countdown": 1}, "countdown and max_retries are for busy='retry'"),
        ({"skipped": 1}, "skipped is the result with busy='skip'"),
        ({"max_retries": -1}, "max_retries must be a number of retries, or None, not -1"),
        ({"countdown": "soon"}, "countdown"),
        ({"ttl": 0}, "ttl"),
        ({"name": None}, "needs either the name or name_of="),
    ],
)
def test_wrong_arguments_are_refused_at_decoration(
    client: holdfast.Client, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(holdfast.ConfigurationError, match=problem):
        exclusive(client, **{"name": "a", **options})


def test_fields_that_the_function_lacks_are_refused_before_there_is_a_client() -> None:
    def no_client() -> holdfast.Client:
        raise AssertionError("it must not be called before the first run")

    with pytest.raises(holdfast.ConfigurationError, match="has no such parameter"):

        @exclusive(no_client, "{order}")
        def settle(account: int) -> None: ...


@pytest.mark.parametrize("client", ["redis://cache", None, holdfast.Client])
def test_a_client_is_an_object_or_a_function(client: Any) -> None:
    with pytest.raises(holdfast.ConfigurationError, match=r"client must be a holdfast\.Client, or a function"):
        exclusive(client, "a")(lambda: None)
    with pytest.raises(holdfast.ConfigurationError, match=r"client must be a holdfast\.Client, or a function"):
        once(client)


def test_a_function_that_returns_another_object_is_refused() -> None:
    task = exclusive(lambda: "redis://cache", "a")(lambda: None)  # type: ignore[arg-type,return-value]

    with pytest.raises(holdfast.ConfigurationError, match=r"must return a holdfast\.Client, not 'redis://cache'"):
        task()


def test_the_ttl_is_that_of_the_client_that_the_function_returns(url: str) -> None:
    client = holdfast.Client(url, ttl=7)

    @exclusive(lambda: client, "a", busy="skip", lease="lease")
    def remaining(lease: holdfast.Lease) -> float:
        return lease.remaining

    assert 5 < remaining() <= 7
    client.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_runs_a_task_when_a_thread_of_the_parent_was_making_the_client(url: str) -> None:
    """The child would wait forever for a mutex that only that thread can unlock, and that is not in the child."""
    parent, is_making, may_end = os.getpid(), threading.Event(), threading.Event()

    def make_client() -> holdfast.Client:
        if os.getpid() == parent:
            is_making.set()
            may_end.wait()
        return holdfast.Client(url)

    task = exclusive(make_client, "a")(lambda: None)
    thread = threading.Thread(target=task)
    thread.start()
    is_making.wait()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12 on: of a fork beside another thread
        child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # that of pytest would raise
            signal.alarm(10)  # ends a child that waits forever
            task()
        except BaseException:
            os._exit(1)
        os._exit(0)

    status = os.waitpid(child, 0)[1]
    may_end.set()
    thread.join()

    assert status == 0


@pytest.mark.parametrize("how", ["apply", "direct"])
def test_a_busy_lock_raises_outside_of_a_worker(app: Any, client: holdfast.Client, url: str, how: str) -> None:
    """Celery would repeat an eager task at once, and forever."""

    @app.task
    @exclusive(client, "a")
    def settle() -> str:
        return "done"

    with holdfast.Client(url) as other, other.lock("a"), pytest.raises(holdfast.AcquireTimeout):
        settle.apply().get() if how == "apply" else settle()

    assert settle.apply().get() == "done"
    assert settle() == "done"


def test_the_arguments_of_delay_are_checked(app: Any, client: holdfast.Client) -> None:
    app.conf.task_always_eager = False

    @app.task(bind=True)
    @exclusive(client, "{account}", lease="lease")
    def settle(self: Any, lease: holdfast.Lease, account: int) -> None: ...

    with pytest.raises(TypeError, match="account"):
        settle.delay()


def test_the_error_of_a_body_does_not_count_as_a_busy_lock(app: Any, client: holdfast.Client, url: str) -> None:
    @app.task
    @exclusive(client, "a", busy="skip", skipped="busy")
    def settle() -> None:
        with client.lock("b", timeout=0):
            pass

    with holdfast.Client(url) as other, other.lock("b"), pytest.raises(holdfast.AcquireTimeout, match="'b'"):
        settle.apply().get()


@pytest.mark.parametrize("on_lost", [None, "function", "event"])
def test_a_loss_interrupts_the_body_in_the_main_thread(client: holdfast.Client, on_lost: str | None) -> None:
    lost: list[holdfast.Lease] = []
    may_end = threading.Event()

    @exclusive(client, "a", ttl=1, lease="lease", on_lost=lost.append if on_lost == "function" else on_lost)
    def settle(lease: holdfast.Lease) -> None:
        threading.Thread(target=client.break_lock, args=("a",), kwargs={"fence": lease.fence}).start()
        if on_lost == "event":
            assert lease.wait_lost(30)
            may_end.set()
        else:
            may_end.wait(60)

    with pytest.raises(holdfast.LockLost):
        settle()

    assert may_end.is_set() == (on_lost == "event")
    eventually(lambda: len(lost) == (on_lost == "function"))


def test_a_loss_does_not_interrupt_other_threads(client: holdfast.Client) -> None:
    ends: list[str] = []

    @exclusive(client, "a", ttl=1, lease="lease")
    def settle(lease: holdfast.Lease) -> None:
        client.break_lock("a", fence=lease.fence)
        assert lease.wait_lost(30)
        ends.append("end of the body")

    def run() -> None:
        with pytest.raises(holdfast.LockLost):
            settle()
        ends.append("LockLost")

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)

    assert ends == ["end of the body", "LockLost"]


def test_apply_once_refuses_tasks_that_cannot_run_once(app: Any, client: holdfast.Client) -> None:
    @app.task
    @exclusive(client, "a")
    def settle() -> None: ...

    with pytest.raises(holdfast.ConfigurationError, match=r"put @holdfast.celery.once\(client\) below @app.task"):
        apply_once(settle, "a")


def test_apply_once_runs_an_eager_task_once(app: Any, client: holdfast.Client) -> None:
    runs = []

    @app.task(bind=True, autoretry_for=(KeyError,))
    @once(lambda: client)
    def charge(self: Any, invoice: int) -> int:
        runs.append(invoice)
        return 10 * invoice

    first = apply_once(charge, "7", args=[7])
    second = apply_once(charge, "7", args=[7])

    assert (first.id, first.get()) == (second.id, 70)
    assert runs == [7]
    assert charge.delay(8).get() == charge(8) == 80
    assert runs == [7, 8, 8]
