"""Several nodes as one store of the simulated world. Each node fails alone.

The consequences of a node's faults:

    restart, data lost, old data     none: a node that may have lost data does not count until all leases expired
    stall, cut                       none while a majority replies
    clock set back                   leases last longer
    clock leaps ahead                votes expire early: a lease without a majority on other nodes is not protected, and
                                     a node that was started just before reports a long uptime
    data lost, and a clock is wrong  fences may repeat: a node without data starts to count from its clock
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from holdfast.backends.redis.port import Call
from holdfast.backends.redis.protocol.keys import Keys
from holdfast.backends.redlock import lua
from holdfast.backends.redlock.protocol.guarantees import GUARANTEES
from holdfast.backends.redlock.protocol.node_health import PAUSE_MAX
from holdfast.backends.redlock.protocol.quorum import RedlockBackend
from holdfast_lab.checking import history as h
from holdfast_lab.sim.faults import POOLED
from holdfast_lab.sim.recorder import Entry
from holdfast_lab.sim.servers.base import Server
from holdfast_lab.sim.servers.redlock.node import Node, config_for
from holdfast_lab.sim.servers.redlock.port import Branch, SimNodes
from holdfast_lab.sim.servers.redlock.votes import Vote, counted, vote_in, waiters_in

if TYPE_CHECKING:
    from holdfast.core.ports import Backend
    from holdfast_lab.sim.faults import Faults
    from holdfast_lab.sim.network import Link
    from holdfast_lab.sim.process import Process
    from holdfast_lab.sim.recorder import Recorder
    from holdfast_lab.sim.runtime import SimRuntime
    from holdfast_lab.sim.world import World

T = TypeVar("T")

MAX_TTL = 300.0  # seconds, the default
APART = 0.8  # largest lead in seconds of a node's clock: less than the shortest ttl
DRIFT = 0.0005  # largest drift of a node's clock; with a client's own it is below what the protocol allows
TOGETHER = 0.02  # seconds: requests that were sent together usually arrive within this time
# Seconds that a majority may be missing: one node has lost a vote after it has renewed it, and another gets the vote
# when the renewal has waited for a silent node. The default of node_timeout, and the time of a request.
BLINK = 0.5 + 0.1


class RedlockServer(Server):
    """Three nodes, or five."""

    decides = False  # a client rejects the votes of nodes that may have forgotten a lease
    guarantees = GUARANTEES
    # As for one Redis. In addition, a node that is not eligible yet gets fewer requests.
    orphaning_faults = frozenset({"crash", "stall", "restart", "lose_data", "old_data", "leap_clock"})
    excluded_faults = POOLED  # as for one Redis; an unresponsive node is a separate fault
    node_type = Node
    kinds = ("lock",)
    clock_back_max = 10.0
    backend: Callable[..., Any] = RedlockBackend
    texts: ClassVar[Mapping[str, str]] = {}  # scripts that a mutant has changed, by name
    quarantine: ClassVar[bool] = True

    def __init__(self, world: World, recorder: Recorder) -> None:
        super().__init__(world, recorder)
        self._nodes = [Node(self, number) for number in range(3 + 2 * world.choices.below(2))]
        self._quorum = len(self._nodes) // 2 + 1
        self._max_ttl = MAX_TTL
        self._forgets = True  # reported by the nodes: a restart may lose data
        self._restarts = False
        self._have_forgotten = self._clock_was_wrong = False
        self._clients = 0
        self._lost_at: dict[tuple[str, int], float] = {}  # nonce and attempt -> when it lost its majority
        self._granted: set[tuple[str, int]] = set()
        self._doubtful: set[str] = set()  # tickets that may count a lost vote

    @property
    def nodes(self) -> Sequence[Node]:
        return self._nodes

    def prepare(self, faults: Faults, ttl: float) -> None:
        choices = self.world.choices
        self._max_ttl = ttl
        self._restarts = bool(faults.restart or faults.lose_data or faults.old_data)
        if not (faults.lose_data or faults.old_data):
            self._forgets = not choices.chance(0.5)
        if faults.drift:
            for node in self._nodes:
                node.ahead = choices.between(0.0, APART)
                node.rate = 1.0 + choices.between(0.0, 2 * DRIFT) - DRIFT

    def open(self, link: Link, runtime: SimRuntime) -> Backend:
        branches = [Branch(link, node) for node in self._nodes]
        link.branches = [*branches]
        self._clients += 1
        port = SimNodes(branches, runtime, self._clients, forgets=self._forgets)
        for node in self._nodes:
            node.subscribers.append(port)
        config = config_for(len(self._nodes), max_ttl=self._max_ttl, quarantine=self.quarantine)
        backend: Backend = type(self).backend(config, port, runtime)
        return backend

    def execute(self, step: Callable[[], T]) -> T:
        raise NotImplementedError  # only nodes execute requests

    # ── state ────────────────────────────────────────────────────────────────────────────────────────────────────

    def tickets(self) -> dict[str, Entry]:
        """The tickets with a majority, and the waiters.

        A lease that has lost its majority does not count again, even if it gets votes again.
        """
        entries: dict[str, Entry] = {}
        now = self.world.now
        granted = set()
        for name, keys in self._locks():
            waiting: dict[str, int] = {}
            for node in self._nodes:
                for waiter in waiters_in(node.machine.space, keys):
                    waiting[waiter.nonce] = min(waiter.since, waiting.get(waiter.nonce, waiter.since))
            for nonce, since in waiting.items():
                entries[nonce] = Entry(name, since, None, 1, exclusive=True)
            for claim, votes in counted(self._votes(keys)).items():
                nonce, _ = claim
                is_doubtful = nonce in self._doubtful
                if len(votes) >= self._quorum or is_doubtful:
                    if now - self._lost_at.get(claim, now) <= BLINK:
                        granted.add(claim)
                        entries[nonce] = Entry(name, 0, max(vote.fence for vote in votes), 1, exclusive=True)
                    elif nonce in entries:
                        del entries[nonce]
        for claim in self._granted - granted:
            self._lost_at.setdefault(claim, now)
        for claim in granted:
            self._lost_at.pop(claim, None)
        self._granted = granted
        return entries

    def live(self) -> dict[str, Entry]:
        """All tickets, because even a single vote blocks others."""
        entries: dict[str, Entry] = {}
        for name, keys in self._locks():
            for node in self._nodes:
                for waiter in waiters_in(node.machine.space, keys):
                    if waiter.is_live:
                        entries[waiter.nonce] = Entry(name, waiter.since, None, 1, exclusive=True)
            for (nonce, _), votes in counted(self._votes(keys)).items():
                entries[nonce] = Entry(name, 0, max(vote.fence for vote in votes), 1, exclusive=True)
        return entries

    def break_lock(self, name: str, fence: int) -> None:
        for known, keys in self._locks():
            nonces = {vote.nonce for vote in self._votes(keys) if vote is not None and vote.fence == fence}
            if known == name:
                for nonce in nonces:
                    self._release(Call(lua.RELEASE, keys, (nonce, 2**53, 1)))

    def _release(self, call: Call) -> None:
        for node in self._nodes:
            node.execute(lambda node=node: node.run(call))  # type: ignore[misc]  # mypy does not infer the lambda

    def _locks(self) -> list[tuple[str, Keys]]:
        known: dict[str, tuple[str, Keys]] = {}
        for node in self._nodes:
            known |= {key: (name, keys) for key, (name, keys) in node._locks.items() if isinstance(keys, Keys)}
        return [*known.values()]

    def _votes(self, keys: Keys) -> list[Vote | None]:
        return [vote_in(node.machine.space, keys) for node in self._nodes]

    # ── faults ───────────────────────────────────────────────────────────────────────────────────────────────────

    def forgets(self, node: Node, kind: h.StateKind, detail: str) -> list[h.Event]:
        """The events that record for the checkers what this fault may break."""
        now = self.world.now
        events: list[h.Event] = []
        self._have_forgotten |= kind == "data"
        self._clock_was_wrong |= kind != "data"
        if self._have_forgotten and self._clock_was_wrong:
            events += [h.StateLost(now, "data", detail=detail), h.StateLost(now, "clock", detail=detail)]
        if kind == "lease":
            is_new = node.uptime < self._max_ttl
            for name, keys in self._locks():
                vote = vote_in(node.machine.space, keys)
                # A vote that was not renewed together with this one is about to expire, so the lease does not need it.
                together = [
                    other
                    for other in self._votes(keys)
                    if other and vote and other[:2] == vote[:2] and other.left > vote.left - TOGETHER
                ]
                if is_new or (vote is not None and len(together) - 1 < self._quorum):
                    self._doubt(vote)
                    events.append(h.StateLost(now, "lease", name, detail=detail))
        name = {"data": "lose_data", "clock": "step_clock", "lease": "leap_clock"}[kind]
        return [h.FaultStarted(now, name, node.name), *events, h.FaultEnded(now, name, node.name)]

    def _doubt(self, vote: Vote | None) -> None:
        """The client may have received this vote, and may be granted the lock with votes that it receives later."""
        if vote is not None:
            self._doubtful.add(vote.nonce)
            self.recorder.observe(self.tickets())
            self._doubtful.clear()

    def stall(self, node: Node, *, begins: bool) -> h.Event:
        """The store is cut off while a majority does not reply."""
        now = self.world.now
        others = sum(other.is_stalled for other in self._nodes if other is not node)
        if others == len(self._nodes) - self._quorum:
            return h.Unreachable(now) if begins else h.Reachable(now)
        return h.FaultStarted(now, "stall", node.name) if begins else h.FaultEnded(now, "stall", node.name)

    def drop(self, process: Process) -> bool:
        return sum(node.drop(process) for node in self._nodes) > 0

    def process_died(self, process: Process) -> None:
        for node in self._nodes:
            node.process_died(process)

    @property
    def recovery_time(self) -> float:
        return self._max_ttl if self._restarts and self._forgets else 0.0

    @property
    def extra_lease_time(self) -> float:
        return sum(node.set_back for node in self._nodes)

    @property
    def extra_idle_time(self) -> float:
        # A client that got no reply of a node leaves it out, and releases a vote there, at the next check of the node.
        return self.extra_lease_time + PAUSE_MAX
