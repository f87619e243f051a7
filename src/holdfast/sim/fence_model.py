"""The two halves of a vote, each as a function: what an attempt does next, and what a node answers.

An attempt depends on nothing but the answers that it gets, and an answer on nothing but what the node knows and what it
is asked. So the shipped protocol is run once for all answers that an attempt can get, the shipped script once for all
that a node can know, and both are remembered.

What no fence depends on is left out: queues and hints, the line that names the holder, whom a refusal names, time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

from holdfast.backends.redis.port import Call, Channel
from holdfast.backends.redis.protocol.keys import REDLOCK, keys_of
from holdfast.backends.redlock import lua
from holdfast.backends.redlock.port import ServerRun
from holdfast.core.tickets import Granted, Ticket
from holdfast.errors import HoldfastError, OutcomeUnknown, QuorumError
from holdfast.sim.servers.redis.machine import Machine
from holdfast.sim.servers.redis.port import PREFIX
from holdfast.sim.servers.redlock.node import config_for

TTL = 30.0
LOCK = "lock"
LOST, REFUSED, LATE = "lost", "refused", "late"  # answers that are no numbers
_LATER = 100.0  # seconds from one attempt to the next: whoever was silent is asked again

_MAY_QUEUE = 6  # its place among the words of acquire.lua

Answer: TypeAlias = int | str
KEYS = keys_of(PREFIX, LOCK)


class Vote(NamedTuple):
    """Who has it. A client's tickets are numbered, and so are a ticket's attempts."""

    client: int
    ticket: int
    attempt: int
    counted: int


class Node(NamedTuple):
    """What a node knows."""

    vote: Vote | None
    counted: int | None
    run: int | None  # the life in which it has counted
    server_run: int  # 0, and one more after each amnesia
    clock: int  # microseconds


class Attempt(NamedTuple):
    """One attempt of one ticket, by a client that knows the nodes in these lives."""

    client: int
    ticket: int
    number: int
    lives: tuple[int, ...]


Ask: TypeAlias = Mapping[int, Call]  # by node
Next: TypeAlias = "Ask | int | None"  # what it asks; the fence that it is granted; None: it has failed


class Ballots:
    """The protocol and the scripts of one backend, shipped or mutated."""

    def __init__(self, backend: Callable[..., Any], texts: Mapping[str, str], nodes: int) -> None:
        self._backend = backend
        self._texts = texts
        self._nodes = nodes
        self._config = config_for(nodes, max_ttl=TTL, quarantine=False)
        self._answers: dict[tuple[Node, Call], tuple[Node, Answer]] = {}
        self._nexts: dict[tuple[Attempt, tuple[tuple[Answer, ...], ...]], Next] = {}

    def answer(self, node: Node, call: Call) -> tuple[Node, Answer]:
        """What the node knows after this call, and what it says."""
        found = self._answers.get((node, call))
        if found is None:
            found = self._answers[node, call] = self._run(node, call)
        return found

    def follow(self, attempt: Attempt, heard: tuple[tuple[Answer, ...], ...]) -> Next:
        """What an attempt does after these answers: for each node, one for each time that somebody was asked."""
        key = (attempt, heard)
        if key not in self._nexts:
            self._nexts[key] = self._try_acquire(attempt, heard)
        return self._nexts[key]

    # ── nodes ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self, node: Node, call: Call) -> tuple[Node, Answer]:
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
            raise AssertionError(f"a script that keeps more than a vote and a count: {sorted(kept)}")
        after = {field: int(text) for field, text in cast("dict[bytes, bytes]", fields_after).items() if text.isdigit()}
        changed = node._replace(
            vote=_vote(cast("bytes | None", value)), counted=after.get(b"count"), run=after.get(b"run")
        )
        return changed, _simply(reply)

    # ── attempts ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _try_acquire(self, attempt: Attempt, heard: Sequence[Sequence[Answer]]) -> Next:
        runtime = StoppedClock()
        port = ParkedPort(attempt.lives)
        backend = self._backend(self._config, port, runtime)
        ticket = Ticket(LOCK, nonce_of(attempt.client, attempt.ticket), TTL, 1, exclusive=True, agent="", info="{}")
        for _ in range(attempt.number - 1):  # what these heard makes no difference: let it be nothing
            self._follow(backend.try_acquire(ticket, queue=True, deadline=runtime.now() + TTL), None)
            runtime.time += _LATER
        return self._follow(backend.try_acquire(ticket, queue=True, deadline=runtime.now() + TTL), heard)

    def _follow(self, entering: Coroutine[Any, Any, Any], heard: Sequence[Sequence[Answer]] | None) -> Next:
        """Up to its end, or to the first question that has no answer yet. `heard` None: nobody ever answers."""
        asks = 0
        replies: Any = None
        try:
            while True:
                calls: Sequence[tuple[int, Call]] = entering.send(replies)
                if calls[0][1].script is lua.RELEASE:
                    replies = [0] * len(calls)  # whether it had the vote changes nothing
                    continue
                if heard is None:
                    replies = [_full(call, LOST) for _, call in calls]
                    continue
                if asks == len(heard[0]):
                    return dict(calls)
                replies = [_full(call, heard[number][asks]) for number, call in calls]
                asks += 1
        except StopIteration as end:
            return end.value.fence if isinstance(end.value, Granted) else None
        except QuorumError:
            return None
        finally:
            entering.close()


def nonce_of(client: int, ticket: int) -> str:
    return f"{client}.{ticket}"


def _vote(value: bytes | None) -> Vote | None:
    if value is None:
        return None
    nonce, attempt, count = value.decode().removeprefix(REDLOCK).split(":")
    client, ticket = nonce.split(".")
    return Vote(int(client), int(ticket), int(attempt), int(count))


def _simply(reply: Any) -> Answer:
    """As the search knows it."""
    if isinstance(reply, int):
        return reply
    match reply[0]:
        case b"granted":
            return int(reply[1])
        case b"late":
            return LATE
        case _:
            return REFUSED


def _full(call: Call, answer: Answer) -> Any:
    """As the protocol knows it."""
    if answer == LOST:
        return OutcomeUnknown(backend="sim", problem="no answer in time")
    if call.script is not lua.ACQUIRE:
        return answer
    if answer == REFUSED:
        return [b"wait", 0, -1, f"{REDLOCK}?:1:1".encode(), b""]
    return [b"late"] if answer == LATE else [b"granted", str(answer).encode()]


class _Question:
    """Awaited: hands the calls to whoever drives, and the answers back."""

    def __init__(self, calls: Sequence[tuple[int, Call]]) -> None:
        self._calls = calls

    def __await__(self) -> Generator[Sequence[tuple[int, Call]], Any, Any]:
        return (yield self._calls)


class ParkedPort:
    """A RedlockPort that parks at every question. `send` what is answered into whatever coroutine asks."""

    def __init__(self, lives: Sequence[int]) -> None:
        self.started: list[Callable[[], Coroutine[Any, Any, None]]] = []  # what would be done in the background
        self.nodes = tuple(f"node-{number}" for number in range(len(lives)))
        self._server_runs = lives

    async def run_calls(self, calls: Sequence[tuple[int, Call]], *, deadline: float) -> list[Any | HoldfastError]:
        answers: list[Any] = await _Question(calls)
        return answers

    def server_run(self, number: int) -> ServerRun:
        return ServerRun(str(self._server_runs[number]), started_at=0.0, may_forget=False)

    @property
    def subscriber(self) -> ParkedPort:
        return self

    def channel(self, keys: object) -> Channel:
        return Channel("PUBLISH", "hints")

    def subscription(self, channel: Channel) -> int:
        return 0

    def listen(self, wake: object, missed: object) -> None:
        """Nobody calls."""

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """It is not: what is done in the background is to release, and releases are no steps of their own."""
        self.started.append(work)


class StoppedClock:
    """The part of a runtime that an attempt needs. Time stands still."""

    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> float:
        return self.time

    def jitter(self) -> float:
        return 0.0

    def mutex(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def event(self) -> None:
        """Nobody waits."""
