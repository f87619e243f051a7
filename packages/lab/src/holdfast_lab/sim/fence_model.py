"""The two halves of a vote as functions: the next step of an attempt, and the reply of a node.

An attempt depends only on the replies that it gets, and a reply only on the state of the node and the request. So the
shipped protocol is run once for each sequence of replies, the shipped script once for each state of a node and request,
and both results are cached.

Details that no fence depends on are left out: queues, notifications, the holder's line, the holder in a refusal, time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

from holdfast.backends.redis.port import Call, Channel
from holdfast.backends.redis.protocol.keys import REDLOCK, keys_of
from holdfast.backends.redlock import lua
from holdfast.backends.redlock.port import ServerRun
from holdfast.core.notifications import Wakeups
from holdfast.core.tickets import Claim, Granted
from holdfast.errors import HoldfastError, OutcomeUnknown, QuorumError
from holdfast.runtimes.threads import ThreadRuntime
from holdfast_lab.sim.servers.redis.machine import Machine
from holdfast_lab.sim.servers.redis.port import PREFIX
from holdfast_lab.sim.servers.redlock.node import config_for

TTL = 30.0
LOCK = "lock"
LOST, REFUSED, LATE = "lost", "refused", "late"  # replies that are not numbers
_LATER = 100.0  # seconds from one attempt to the next, so that unresponsive nodes get requests again

_MAY_QUEUE = 6  # its index in the arguments of acquire.lua

Reply: TypeAlias = int | str
KEYS = keys_of(PREFIX, LOCK)


class Vote(NamedTuple):
    """The holder of a vote. Tickets of a client and attempts of a ticket are numbered."""

    client: int
    ticket: int
    attempt: int
    counted: int


class Node(NamedTuple):
    """The state of a node."""

    vote: Vote | None
    counted: int | None
    run: int | None  # the run in which it counted
    server_run: int  # 0, plus one after each loss of data
    clock: int  # microseconds


class TicketAttempt(NamedTuple):
    """One attempt of one ticket, by a client that knows these runs of the nodes."""

    client: int
    ticket: int
    number: int
    server_runs: tuple[int, ...]


Requests: TypeAlias = Mapping[int, Call]  # by node
Next: TypeAlias = "Requests | int | None"  # its requests; the fence that it is granted; None: it has failed


class FenceModel:
    """The protocol and the scripts of one backend, shipped or mutated."""

    def __init__(self, backend: Callable[..., Any], texts: Mapping[str, str], nodes: int) -> None:
        self._backend = backend
        self._texts = texts
        self._nodes = nodes
        self._config = config_for(nodes, max_ttl=TTL, quarantine=False)
        self._replies: dict[tuple[Node, Call], tuple[Node, Reply]] = {}
        self._nexts: dict[tuple[TicketAttempt, tuple[tuple[Reply, ...], ...]], Next] = {}

    def answer(self, node: Node, call: Call) -> tuple[Node, Reply]:
        """The state of the node after this call, and its reply."""
        result = self._replies.get((node, call))
        if result is None:
            result = self._replies[node, call] = self._run(node, call)
        return result

    def follow(self, attempt: TicketAttempt, received: tuple[tuple[Reply, ...], ...]) -> Next:
        """The next step of an attempt after these replies: for each node one reply per round of requests."""
        key = (attempt, received)
        if key not in self._nexts:
            self._nexts[key] = self._try_acquire(attempt, received)
        return self._nexts[key]

    # ── nodes ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self, node: Node, call: Call) -> tuple[Node, Reply]:
        machine = Machine(lambda: node.clock, lambda *_: 0)
        lock, record = KEYS.lock.encode(), KEYS.record.encode()
        if node.vote is not None:
            client, *others = node.vote
            machine.space.put(lock, f"{REDLOCK}{nonce_of(client, others[0])}:{others[1]}:{others[2]}".encode())
        fields = {b"count": node.counted, b"run": node.run}
        known = {field: b"%d" % value for field, value in fields.items() if value is not None}
        if known:
            machine.space.put(record, known)
        text = self._texts.get(call.script.name, call.script.text)
        arguments = list(call.arguments)
        if call.script is lua.ACQUIRE:
            arguments[_MAY_QUEUE] = 0
        reply = machine.run(text, call.keys.names, arguments)
        kept = {key: value for key, (value, _) in machine.space.dump().items()}
        value, fields_after = kept.pop(lock, None), kept.pop(record, {})
        if kept:
            raise AssertionError(f"the script keeps more than a vote and a count: {sorted(kept)}")
        after = {field: int(text) for field, text in cast("dict[bytes, bytes]", fields_after).items() if text.isdigit()}
        changed = node._replace(
            vote=_vote(cast("bytes | None", value)), counted=after.get(b"count"), run=after.get(b"run")
        )
        return changed, _short_reply(reply)

    # ── attempts ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _try_acquire(self, attempt: TicketAttempt, received: Sequence[Sequence[Reply]]) -> Next:
        runtime = StoppedClock()
        port = ParkedPort(attempt.server_runs)
        backend = self._backend(self._config, port, runtime)
        ticket = Claim(LOCK, nonce_of(attempt.client, attempt.ticket), TTL, 1, exclusive=True, agent="", info="{}")
        for _ in range(attempt.number - 1):  # earlier attempts get no replies, because these make no difference
            self._follow(backend.try_acquire(ticket, queue=True, deadline=runtime.now() + TTL), None)
            runtime.time += _LATER
        return self._follow(backend.try_acquire(ticket, queue=True, deadline=runtime.now() + TTL), received)

    def _follow(self, acquiring: Coroutine[Any, Any, Any], received: Sequence[Sequence[Reply]] | None) -> Next:
        """Run it to its end, or to the first request without a reply. `received` None: no node ever replies."""
        rounds = 0
        replies: Any = None
        try:
            while True:
                calls: Sequence[tuple[int, Call]] = acquiring.send(replies)
                if calls[0][1].script is lua.RELEASE:
                    replies = [0] * len(calls)  # the result of a release makes no difference
                    continue
                if received is None:
                    replies = [_full_reply(call, LOST) for _, call in calls]
                    continue
                if rounds == len(received[0]):
                    return dict(calls)
                replies = [_full_reply(call, received[number][rounds]) for number, call in calls]
                rounds += 1
        except StopIteration as end:
            return end.value.fence if isinstance(end.value, Granted) else None
        except QuorumError:
            return None
        finally:
            acquiring.close()


def nonce_of(client: int, ticket: int) -> str:
    return f"{client}.{ticket}"


def _vote(value: bytes | None) -> Vote | None:
    if value is None:
        return None
    nonce, attempt, count = value.decode().removeprefix(REDLOCK).split(":")
    client, ticket = nonce.split(".")
    return Vote(int(client), int(ticket), int(attempt), int(count))


def _short_reply(reply: Any) -> Reply:
    """The reply in the form of the search."""
    if isinstance(reply, int):
        return reply
    match reply[0]:
        case b"granted":
            return int(reply[1])
        case b"late":
            return LATE
        case _:
            return REFUSED


def _full_reply(call: Call, answer: Reply) -> Any:
    """The reply in the form of the protocol."""
    if answer == LOST:
        return OutcomeUnknown(backend="sim", problem="no answer in time")
    if call.script is not lua.ACQUIRE:
        return answer
    if answer == REFUSED:
        return [b"wait", 0, -1, f"{REDLOCK}?:1:1".encode(), b""]
    return [b"late"] if answer == LATE else [b"granted", str(answer).encode()]


class _Requests:
    """Awaited: passes the calls to the driver of the coroutine, and the replies back."""

    def __init__(self, calls: Sequence[tuple[int, Call]]) -> None:
        self._calls = calls

    def __await__(self) -> Generator[Sequence[tuple[int, Call]], Any, Any]:
        return (yield self._calls)


class ParkedPort:
    """A RedlockPort that suspends at every request. The driver sends the replies into the coroutine."""

    def __init__(self, server_runs: Sequence[int]) -> None:
        self.started: list[Callable[[], Coroutine[Any, Any, None]]] = []  # background work, which is never run
        self.nodes = tuple(f"node-{number}" for number in range(len(server_runs)))
        self._server_runs = server_runs
        self.wakeups = Wakeups(ThreadRuntime())  # notifications are not modelled

    async def run_calls(self, calls: Sequence[tuple[int, Call]], *, deadline: float) -> list[Any | HoldfastError]:
        replies: list[Any] = await _Requests(calls)
        return replies

    def server_run(self, number: int) -> ServerRun:
        return ServerRun(str(self._server_runs[number]), started_at=0.0, may_forget=False)

    @property
    def subscriber(self) -> ParkedPort:
        return self

    def channel(self, keys: object) -> Channel:
        return Channel("PUBLISH", "wake")

    def subscription(self, channel: Channel) -> int:
        return 0

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Record the work and do not run it: it only releases votes, and a release is not a step of its own."""
        self.started.append(work)


class StoppedClock:
    """The part of a runtime that an attempt needs. Its clock does not run."""

    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> float:
        return self.time

    def jitter(self) -> float:
        return 0.0

    def mutex(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def event(self) -> None:
        """No task waits."""
