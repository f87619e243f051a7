"""Hazard: two threads share a connection, because the only waiter reads it itself, and a message is lost."""

from __future__ import annotations

import contextlib
import errno
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from holdfast.backends.redis.config import config_of
from holdfast.backends.redis.io import blocking
from holdfast.backends.redis.io.subscriber import Subscriber
from holdfast.backends.redis.io.subscriber_connection import SocketSubscriberConnection, SubscriberEvent
from holdfast.backends.redis.io.topology import Topology
from holdfast.backends.redis.protocol.keys import keys_of
from holdfast.core.notifications import Wakeups
from holdfast.core.tickets import Notification
from holdfast.errors import BackendUnavailable, OutcomeUnknown, ThreadStartError
from holdfast.runtimes.system import now
from holdfast.runtimes.threads import ThreadRuntime, run_sync
from holdfast.url import parse
from holdfast.url_parts import Node
from tests.support.processes import PATIENCE, eventually
from tests.support.redis.binaries import main_binary
from tests.support.redis.servers import Server
from tests.support.server_process import running
from tests.support.wakeups import claim_of

KEYS = keys_of("holdfast:", "one")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(Server(main_binary(), tmp_path_factory.mktemp("redis"))) as server:
        yield server


class CountedWakeups(Wakeups):
    def __init__(self, runtime: ThreadRuntime) -> None:
        super().__init__(runtime)
        self.notified_by: list[str] = []
        self.gaps = 0

    def wake(self, notification: Notification) -> None:
        self.notified_by.append(threading.current_thread().name)
        super().wake(notification)

    def wake_all(self) -> None:
        self.gaps += 1
        super().wake_all()


class SubscribedPort:
    """A port with subscriptions, and the threads that wait on it."""

    def __init__(self, server: Server) -> None:
        self.runtime = ThreadRuntime()
        self.port: Topology = blocking.open_port(config_of(parse(server.url), is_asyncio=False), self.runtime)
        self.wakeups = self.port.subscriber.wakeups = CountedWakeups(self.runtime)
        self.channel = self.port.subscriber.channel(KEYS)
        self._server = server

    def wait(self, nonce: str) -> Waiting:
        return Waiting(self, nonce)

    def notify(self, nonce: str) -> None:
        self._server.call("PUBLISH", self.channel.name, nonce)

    @property
    def reader(self) -> Any:
        """The event of the waiter that reads instead of the listener."""
        (listener,) = self.port.subscriber._listeners.values()
        return listener._connection and listener._connection._reader()  # type: ignore[attr-defined]

    @property
    def listener_reads(self) -> bool:
        (listener,) = self.port.subscriber._listeners.values()
        return bool(listener._connection and listener._connection._listener_reads)  # type: ignore[attr-defined]


class Waiting:
    """A thread that waits for one notification."""

    def __init__(self, subscribed: SubscribedPort, nonce: str) -> None:
        self.event: Any = None
        self._subscribed = subscribed
        self._nonce = nonce
        self._claim = claim_of(nonce)
        subscribed.wakeups.expect(self._claim)
        self._thread = threading.Thread(target=self._wait, name=f"waits-{nonce}")
        self._thread.start()

    def _wait(self) -> None:
        subscribed = self._subscribed
        self.event = run_sync(
            subscribed.port.subscriber.subscribe(subscribed.channel, self._nonce, deadline=now() + PATIENCE)
        )
        run_sync(subscribed.wakeups.wait(self._claim, now() + PATIENCE, self.event))
        subscribed.wakeups.forget(self._claim)
        subscribed.port.subscriber.unsubscribe(subscribed.channel, self._nonce)

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    def join(self) -> None:
        self._thread.join(PATIENCE)
        assert self.has_ended


@pytest.fixture
def subscribed(server: Server) -> Iterator[SubscribedPort]:
    subscribed = SubscribedPort(server)
    yield subscribed
    run_sync(subscribed.port.close())


class FlakySubscriberIO(blocking.ThreadSubscriberIO):
    """Cannot open its first connections, as when there are no descriptors left."""

    failures = 2

    async def open(self, node: Node, deadline: float) -> SocketSubscriberConnection:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return await super().open(node, deadline)


class NoThreads(blocking.ThreadSubscriberIO):
    """Cannot start its first threads."""

    failures = 1

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        if self.failures:
            self.failures -= 1
            raise ThreadStartError(thread=name, problem="can't start new thread")
        super().start(work, name)


@pytest.mark.parametrize("subscriber_io", [FlakySubscriberIO, NoThreads])
def test_a_listener_that_fails_is_replaced(server: Server, subscriber_io: type[blocking.ThreadSubscriberIO]) -> None:
    subscribed = SubscribedPort(server)
    config = config_of(parse(server.url), is_asyncio=False)
    subscribed.port.subscriber = Subscriber(
        config, subscribed.port, subscriber_io(config, subscribed.runtime), subscribed.runtime
    )
    subscribed.port.subscriber.wakeups = subscribed.wakeups
    subscribed.channel = subscribed.port.subscriber.channel(KEYS)

    def is_subscribed() -> bool:
        with contextlib.suppress(BackendUnavailable):
            run_sync(subscribed.port.subscriber.subscribe(subscribed.channel, "n0", deadline=now() + PATIENCE))
        return subscribed.port.subscriber.subscription(subscribed.channel) > 0

    eventually(is_subscribed)
    wait = subscribed.wait("n1")
    eventually(lambda: wait.event is not None)
    subscribed.notify("n1")

    wait.join()
    run_sync(subscribed.port.close())


def test_a_message_that_cannot_be_parsed_raises_for_the_listener_and_not_for_a_waiter(server: Server) -> None:
    for is_reader in (False, True):
        ours, theirs = socket.socketpair()
        subscribed = SocketSubscriberConnection(
            ours, Node("test", 1), config_of(parse(server.url), is_asyncio=False), ThreadRuntime()
        )
        theirs.sendall(b"?what is this\r\n")
        if is_reader:
            event = subscribed.event(lambda _: None)
            assert event is not None
            assert run_sync(event.wait(now() + PATIENCE)) is False

        with pytest.raises(OutcomeUnknown, match="cannot be parsed"):
            run_sync(subscribed.receive(now() + PATIENCE))

        subscribed.close()
        theirs.close()


def reads(subscribed: SubscribedPort, waiting: Waiting) -> Callable[[], bool]:
    return lambda: waiting.event is not None and subscribed.reader is waiting.event


def test_the_only_waiter_reads_its_notification_itself(subscribed: SubscribedPort) -> None:
    for _ in range(3):
        wait = subscribed.wait("n1")
        eventually(reads(subscribed, wait))

        subscribed.notify("n1")

        wait.join()
        assert isinstance(wait.event, SubscriberEvent)
    assert subscribed.wakeups.notified_by == 3 * ["waits-n1"], "no other thread passes it on"


def test_a_reader_passes_on_other_messages_and_the_listener_reads_after_it(
    subscribed: SubscribedPort,
) -> None:
    wait = subscribed.wait("n1")
    eventually(reads(subscribed, wait))
    second, third = subscribed.wait("n2"), subscribed.wait("n3")
    eventually(lambda: second.event is not None and third.event is not None)

    subscribed.notify("n2")
    second.join()
    assert not wait.has_ended
    subscribed.notify("n1")
    wait.join()
    eventually(lambda: subscribed.listener_reads)
    subscribed.notify("n3")

    third.join()
    assert subscribed.wakeups.notified_by == ["waits-n1", "waits-n1", "holdfast-listener"]


def test_a_notification_from_elsewhere_wakes_the_reader(subscribed: SubscribedPort) -> None:
    wait = subscribed.wait("n1")
    eventually(reads(subscribed, wait))

    subscribed.wakeups.wake(Notification("n1"))

    wait.join()


def test_a_broken_connection_is_restored_and_the_gap_reported_when_a_waiter_reads(
    subscribed: SubscribedPort, server: Server
) -> None:
    wait = subscribed.wait("n1")
    eventually(reads(subscribed, wait))
    before = subscribed.port.subscriber.subscription(subscribed.channel)

    server.call("CLIENT", "KILL", "TYPE", "pubsub")

    wait.join()
    again = subscribed.wait("n1")
    eventually(lambda: subscribed.port.subscriber.subscription(subscribed.channel) not in (0, before))
    eventually(lambda: again.has_ended or subscribed.reader is again.event)
    subscribed.notify("n1")
    again.join()
    eventually(lambda: subscribed.wakeups.gaps > 0)


def test_messages_for_the_listener_arrive_when_a_waiter_reads(subscribed: SubscribedPort) -> None:
    wait = subscribed.wait("n1")
    eventually(reads(subscribed, wait))

    other = subscribed.channel._replace(name="holdfast:wake:another")
    run_sync(subscribed.port.subscriber.subscribe(other, "n2", deadline=now() + PATIENCE))

    assert subscribed.port.subscriber.subscription(other)
    assert subscribed.reader is wait.event
    subscribed.notify("n1")
    wait.join()
    subscribed.port.subscriber.unsubscribe(other, "n2")


def test_closing_ends_the_wait_of_a_reader(subscribed: SubscribedPort) -> None:
    wait = subscribed.wait("n1")
    eventually(reads(subscribed, wait))

    run_sync(subscribed.port.close())

    wait.join()


@pytest.mark.parametrize("is_waiting", [False, True])
def test_a_closed_subscriber_connection_has_no_open_descriptors(
    subscribed: SubscribedPort, *, is_waiting: bool
) -> None:
    wait = subscribed.wait("n1")
    eventually(reads(subscribed, wait))
    (listener,) = subscribed.port.subscriber._listeners.values()
    connection: Any = listener._connection
    if not is_waiting:
        subscribed.notify("n1")
        wait.join()

    run_sync(subscribed.port.close())

    wait.join()
    wakers = (connection._waker, connection._reader_waker)
    eventually(lambda: {end for waker in wakers for end in (waker.fileno(), waker.writing_end)} == {-1})


def test_an_interrupted_reader_leaves_a_connection_that_works(subscribed: SubscribedPort) -> None:
    class Interrupted(BaseException):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        event = run_sync(subscribed.port.subscriber.subscribe(subscribed.channel, "n1", deadline=now() + PATIENCE))
        claim = claim_of("n1")
        subscribed.wakeups.expect(claim)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(Interrupted):
            run_sync(subscribed.wakeups.wait(claim, now() + PATIENCE, event))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

    eventually(lambda: subscribed.wakeups.gaps > 0)
    second = subscribed.wait("n2")
    eventually(reads(subscribed, second))
    subscribed.notify("n2")
    second.join()
