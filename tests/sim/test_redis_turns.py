"""Hazard: a free lock is reserved for dead clients, or a client that only reconnects loses its position in the queue.

The shipped scripts run on the model of a server, with a clock and subscribers that the test sets.
"""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.backends.redis.lua import KEEP, SILENT
from holdfast.backends.redis.port import Channel
from holdfast.backends.redis.protocol import queue as protocol
from holdfast.backends.redis.protocol import records
from holdfast.backends.redis.protocol.keys import method_conflict, method_in, queue_keys
from holdfast.core.tickets import WAITER_LEASE, WOKEN_LEASE
from holdfast_lab.sim.servers.redis.layouts import in_queue
from holdfast_lab.sim.servers.redis.machine import Machine

KEYS = queue_keys("holdfast:", "one", per_slot=False)
TTL = 30.0


class Server:
    """One lock, and the clients that are subscribed to their channels."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0
        self.subscribed: set[str] = set()
        self.published: list[tuple[str, str]] = []
        self._machine = Machine(lambda: round(self.now * 1_000_000), self._publish, self._subscribers)
        self.command = self._machine.command

    def try_acquire(
        self,
        client: str,
        number: int,
        kind: str = "x",
        *,
        queue: bool = True,
        channel: str = "wake",
        is_subscribed: bool = True,
        ttl_of_message: float = 0.0,
    ) -> Any:
        where = Channel("PUBLISH", f"{channel}:{client}")
        ttl_ms = round(ttl_of_message * 1000)
        about = records.line_suffix(where, ttl_ms, f"thread {number}", "{}", is_subscribed=is_subscribed)
        arguments = (f"{client}{number}", kind, round(TTL * 1000), int(queue), about)
        return self._machine.run(protocol._TRY_ACQUIRE.text, KEYS.names, arguments)

    def release(self, client: str, number: int, kind: str = "x", *, unanswered: bool = False) -> Any:
        arguments = (f"{client}{number}", kind, int(unanswered), "")
        return self._machine.run(protocol._RELEASE.text, KEYS.names, arguments)

    def renew(self, client: str, number: int) -> Any:
        return self._machine.run(protocol._RENEW.text, KEYS.names, (f"{client}{number}", "x", round(TTL * 1000)))

    def fence(self) -> int:
        """The watermark."""
        watermark: Any = self.command(["GET", KEYS.watermark])
        return int(watermark)

    def queue(self) -> list[str]:
        """The waiting tickets that are not skipped, in order."""
        tickets = in_queue(self._machine.space, "one", KEYS)
        return [ticket.nonce for ticket in tickets if ticket.entry.fence is None and not ticket.is_skipped]

    def woken(self) -> list[str]:
        """The tickets that were woken since the last call."""
        woken, self.published = [message for _, message in self.published], []
        return woken

    def _subscribers(self, channel: bytes) -> int:
        return int(channel.decode().partition(":")[2] in self.subscribed)

    def _publish(self, channel: bytes, message: bytes) -> int:
        client = channel.decode().partition(":")[2]
        if client in self.subscribed:
            self.published.append((client, message.decode()))
            return 1
        return 0


@pytest.fixture
def server() -> Server:
    """The client `a` has the lock; three tickets of `b`, and one of `c` behind them, wait."""
    server = Server()
    server.subscribed = {"a", "b", "c"}
    assert is_granted(server.try_acquire("a", 1))
    for number in range(3):
        server.try_acquire("b", number)
    server.try_acquire("c", 1)
    return server


def is_granted(reply: object) -> bool:
    return isinstance(reply, int)


def test_all_waiters_of_an_unsubscribed_client_are_skipped_at_once(server: Server) -> None:
    server.subscribed.discard("b")

    server.release("a", 1)

    assert server.woken() == ["c1"]
    assert is_granted(server.try_acquire("c", 1))


def test_an_expired_lock_is_granted_past_waiters_of_dead_clients(server: Server) -> None:
    server.subscribed.discard("b")
    server.command(["DEL", KEYS.lock])

    assert is_granted(server.try_acquire("c", 1))


def test_a_call_with_timeout_0_gets_a_free_lock_past_waiters_of_dead_clients(server: Server) -> None:
    server.subscribed.clear()
    server.command(["DEL", KEYS.lock])

    assert is_granted(server.try_acquire("d", 1, queue=False))


def test_all_waiters_of_an_unresponsive_client_are_skipped_together(server: Server) -> None:
    server.release("a", 1)
    assert server.woken() == ["b0"]

    server.now += WOKEN_LEASE / 2
    assert not is_granted(server.try_acquire("c", 1)), "it is the turn of b"
    server.now += WOKEN_LEASE / 2 + 0.01

    assert is_granted(server.try_acquire("c", 1))
    assert server.queue() == []


def test_a_waiter_polls_when_the_turn_of_another_ends(server: Server) -> None:
    server.release("a", 1)
    server.now += 0.25

    _, before, remaining_ms, _, blocker, _ = server.try_acquire("c", 1)

    assert (before, remaining_ms, blocker) == (2, 1000 * WOKEN_LEASE - 250, protocol._ITS_TURN)


def test_a_skipped_client_returns_to_its_position_when_it_polls(server: Server) -> None:
    server.subscribed.discard("b")
    server.release("a", 1)
    server.try_acquire("c", 1)
    server.subscribed.add("b")

    for number in (2, 0, 1):
        assert not is_granted(server.try_acquire("b", number))
    server.try_acquire("d", 1)

    assert server.queue() == ["b0", "b1", "b2", "d1"]


def test_a_skipped_client_gets_its_turn_before_a_later_client_that_has_not_polled(server: Server) -> None:
    server.subscribed.discard("b")
    server.release("a", 1)
    server.subscribed.add("b")

    assert is_granted(server.try_acquire("b", 0))
    assert not is_granted(server.try_acquire("c", 1))


def test_a_skipped_client_that_does_not_poll_loses_its_position_with_its_lease(server: Server) -> None:
    server.subscribed.discard("b")
    server.release("a", 1)
    server.now += WAITER_LEASE + 0.01
    server.try_acquire("d", 1)
    server.try_acquire("e", 1)

    server.try_acquire("b", 0)

    assert server.queue() == ["e1", "b0"]


def test_an_unresponsive_thread_does_not_cost_the_polling_threads_of_its_client_their_positions(
    server: Server,
) -> None:
    server.release("a", 1)
    server.now += WOKEN_LEASE + 0.01

    assert is_granted(server.try_acquire("b", 1))

    assert server.queue() == ["b2", "c1"]


def test_a_waiter_that_has_not_polled_for_long_is_skipped_at_once(server: Server) -> None:
    server.now += SILENT / 2
    server.try_acquire("c", 1)
    server.now += SILENT / 2 + 0.01

    server.release("a", 1)

    assert server.queue()[0] == "c1"
    assert is_granted(server.try_acquire("c", 1))


def test_readers_are_woken_past_dead_clients_and_a_writer_still_blocks_later_ones(server: Server) -> None:
    for client in "defg":
        server.try_acquire(client, 1, "x" if client == "f" else "r")
    server.subscribed |= {"d", "f", "g"}
    server.subscribed -= {"b", "c"}

    server.release("a", 1)

    assert server.woken() == ["d1"]
    assert server.queue() == ["d1", "f1", "g1"]


def test_a_client_that_polls_while_its_subscription_reconnects_is_not_skipped(server: Server) -> None:
    server.subscribed.discard("b")
    server.try_acquire("b", 0, is_subscribed=False)

    server.release("a", 1)

    assert not is_granted(server.try_acquire("c", 1))
    assert is_granted(server.try_acquire("b", 0))


def test_a_waiter_has_a_second_to_respond_when_the_server_cannot_count_subscribers() -> None:
    server = Server()
    server.try_acquire("a", 1)
    server.try_acquire("b", 1, channel="wake-all")
    server.try_acquire("c", 1, channel="wake-all")

    server.release("a", 1)
    assert not is_granted(server.try_acquire("c", 1, channel="wake-all"))
    server.now += WOKEN_LEASE + 0.01

    assert is_granted(server.try_acquire("c", 1, channel="wake-all"))


@pytest.mark.parametrize(
    "woken",
    [
        "DEL\nholdfast:wake:b",
        "DEL 30000\npayroll",
        "PUBLISH 30000\npayroll",
        "PUBLISH\nholdfast:wake:b x",
        "SPUBLISH\n",
        "",
    ],
)
def test_a_waiter_cannot_make_a_release_run_other_commands(server: Server, woken: str) -> None:
    server.command(["SET", "payroll", "precious"])
    lapses = round((server.now + WAITER_LEASE) * 1000)
    server.command(["HSET", KEYS.waiters, "b0", f"x\n1\n{lapses}\n0\n{woken}\nagent\n{{}}"])

    server.release("a", 1)

    assert server.command(["GET", "payroll"]) == b"precious"
    assert ("payroll", "b0") not in server.published


def test_entries_of_waiters_that_all_died_are_removed_when_a_later_one_polls(server: Server) -> None:
    server.now += WAITER_LEASE + 1.0
    server.try_acquire("d", 1)

    server.try_acquire("d", 1)

    fields: Any = server.command(["HKEYS", KEYS.waiters])
    assert fields == [b"d1"]
    assert server.command(["LRANGE", KEYS.queue, 0, -1]) == [b"d1"]


FORMAT_1 = ["holdfast:queue:0123", "holdfast:queue:+shared", "holdfast:queue:+@01", "holdfast:shared"]


@pytest.mark.parametrize("theirs", FORMAT_1)
@pytest.mark.parametrize("kind", ["x", "r", "3", "@0123456789abcdef"])
def test_locks_in_format_1_are_refused_for_all_tickets(theirs: str, kind: str) -> None:
    server = Server()
    server.command(["SET", KEYS.lock, theirs, "PX", 1000])

    reply = server.try_acquire("a", 1, kind)

    assert reply == [b"method", theirs.encode()]
    assert "before 0.2" in str(method_conflict("one", method_in(theirs) or ""))
    assert server.command(["GET", KEYS.lock]) == theirs.encode()


@pytest.mark.parametrize("kind", ["x", "r", "3", "@0123456789abcdef"])
def test_format_1_refuses_the_values_of_this_format(kind: str) -> None:
    server = Server()
    server.try_acquire("a", 1, kind)

    value: Any = server.command(["GET", KEYS.lock])

    # Format 1 waits for values of its own and of other programs, and refuses those of other methods of holdfast.
    assert value.startswith(b"holdfast:")
    assert not value.startswith((b"holdfast:queue:", b"holdfast:shared"))


@pytest.mark.parametrize("kind", ["x", "r"])
def test_locks_of_dead_holders_are_removed_from_the_index_by_later_grants(kind: str) -> None:
    server = Server()
    for number in range(100):
        server.command(["ZADD", KEYS.locks, round(server.now * 1000), f"holdfast:dead-{number}"])
    server.now += 1.01

    for number in range(100):
        server.now += 0.000_001
        assert is_granted(server.try_acquire("a", number, kind))
        server.release("a", number, kind)

    assert server.command(["ZCARD", KEYS.locks]) == 0


def test_fences_of_all_locks_grow_after_the_clock_was_set_back() -> None:
    server = Server()
    fences = []

    for number in range(5):
        server.now -= 100.0
        server.try_acquire("a", number)
        fences.append(server.fence())
        server.release("a", number)

    assert fences == sorted(set(fences))


def test_a_hand_over_takes_a_fence_from_the_watermark(server: Server) -> None:
    server.now -= 100.0
    before = server.fence()
    server.subscribed.add("d")
    server.try_acquire("d", 1, ttl_of_message=TTL)

    for client, number in (("a", 1), ("b", 0), ("b", 1), ("b", 2), ("c", 1)):
        server.try_acquire(client, number)
        server.release(client, number)

    assert server.woken()[-1] == f"d1 {server.fence()}"
    assert server.fence() > before


def test_a_lock_returns_to_the_fast_path_when_a_tombstone_and_skipped_waiters_have_expired(
    server: Server,
) -> None:
    server.subscribed.discard("b")
    server.release("a", 1)
    assert is_granted(server.try_acquire("c", 1))
    server.release("x", 1, unanswered=True)
    server.now += WAITER_LEASE + 0.01
    server.release("c", 1)

    server.try_acquire("d", 1)
    server.release("d", 1)

    assert server.command(["EXISTS", *KEYS.names[1:5]]) == 0


def test_a_waiter_that_joins_twice_has_one_entry(server: Server) -> None:
    server.try_acquire("d", 1)
    first = server.command(["HGET", KEYS.waiters, "d1"])
    server.now += 1.0

    server.try_acquire("d", 1)

    assert server.queue() == ["b0", "b1", "b2", "c1", "d1"]
    assert server.command(["HGET", KEYS.waiters, "d1"]) != first, "its waiter lease is longer"


def test_a_late_request_of_a_withdrawn_waiter_does_not_join(server: Server) -> None:
    server.release("d", 1, unanswered=True)

    assert server.try_acquire("d", 1) == [b"withdrawn"]
    assert server.queue() == ["b0", "b1", "b2", "c1"]


def test_the_keys_of_waiters_outlive_every_waiter_that_joins_without_writing_their_ttl(server: Server) -> None:
    server.try_acquire("a", 1)  # granted again, which sets `kept` to a ttl and KEEP from now
    for _ in range(12):
        server.now += TTL / 2
        server.renew("a", 1)
        server.try_acquire("d", 1)  # on the fast path, or on the slow one when `kept` is near
        ttls: Any = server.command(["PTTL", KEYS.queue]), server.command(["PTTL", KEYS.waiters])
        assert min(ttls) >= 1000 * WAITER_LEASE
        server.release("d", 1)


def test_a_fence_that_is_ahead_of_the_clock_does_not_keep_a_dead_lock_in_the_index() -> None:
    server = Server()
    server.command(["SET", KEYS.watermark, 2**52])

    assert server.try_acquire("a", 1) == 2**52 + 1

    score: Any = server.command(["ZSCORE", KEYS.locks, KEYS.lock])
    assert float(score) / 1000 < server.now + TTL + KEEP + 1.0
