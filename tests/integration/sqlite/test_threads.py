"""Hazard: a client stays broken after a thread could not be started because of a limit on processes."""

from __future__ import annotations

import selectors
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import holdfast
from holdfast.backends.sqlite.io.sessions import Session, SessionWatcher
from tests.integration.sqlite.conftest import Store
from tests.support.processes import eventually


@contextmanager
def without_threads(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[None]:
    """No thread of this name can be started. A limit of the kernel would also affect the threads of the test."""
    start: Callable[[threading.Thread], None] = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        yield


def test_a_waiter_polls_while_the_listening_thread_cannot_be_started(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with holdfast.Client(store.url) as holder, holdfast.Client(store.url) as waiter:
        held = holder.lock("one").acquire()
        assert held is not None
        granted: list[holdfast.Lease | None] = []
        with without_threads(monkeypatch, "holdfast-listener"):
            thread = threading.Thread(target=lambda: granted.append(waiter.lock("one").acquire(timeout=20)))
            thread.start()
            eventually(lambda: len(holder.inspect("one").waiters) == 1)
            held.release()
            thread.join()

        (lease,) = granted
        assert lease is not None
        lease.release()


async def test_a_task_gets_a_clear_error_while_no_thread_can_be_started_and_its_client_works_afterwards(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with holdfast.AsyncClient(store.url) as client:
        with (
            without_threads(monkeypatch, "holdfast-sqlite"),
            pytest.raises(holdfast.BackendUnavailable, match="start new thread"),
        ):
            await client.lock("one").acquire(timeout=0)

        async with client.lock("one", timeout=5) as lease:
            assert lease.held


async def test_a_client_can_be_closed_while_no_thread_can_be_started(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = holdfast.AsyncClient(store.url)
    with without_threads(monkeypatch, "holdfast-sqlite"):
        with pytest.raises(holdfast.BackendUnavailable):
            await client.lock("one").acquire(timeout=0)

        await client.close()


def test_a_waiter_that_was_interrupted_while_it_subscribed_can_unsubscribe(tmp_path: Path) -> None:
    def interrupted(_fd: int, _callback: Callable[[], None]) -> None:
        raise KeyboardInterrupt

    session = Session(str(tmp_path), "a" * 32)
    with selectors.DefaultSelector() as selector:
        watch = SessionWatcher(str(tmp_path), lambda _: None, interrupted, selector.unregister)
        with pytest.raises(KeyboardInterrupt):
            watch.subscribe("nonce", [session.name], None)

        watch.unsubscribe("nonce")

        assert watch.is_idle
    session.close()
