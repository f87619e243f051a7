"""Three members that replicate writes, and the leader's timers.

A client's member forwards a write to the leader, which commits it if it can reach a majority. The other members apply
it a little later, and answer reads from what they have applied. Only the leader's timer ends a session. The leader
resets it when the session connects, and at every request of its own clients. For clients of another member it resets
it only when that member answers a ping, twice in a tick, and reports which sessions were active since the last ping.

A member that is cut off continues to answer reads from what it has applied. Its clients' writes get no answer; in half
of the cuts they still reach the leader. A leader that is cut off is replaced at once; the new one resets all timers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.backends.zookeeper.config import ZookeeperConfig
from holdfast.backends.zookeeper.port import Answer, Children, CreateParent, Delete, Ephemerals, Get, Request
from holdfast.backends.zookeeper.protocol.backend import ZookeeperBackend
from holdfast.backends.zookeeper.protocol.guarantees import GUARANTEES
from holdfast.backends.zookeeper.protocol.nodes import queue_entries
from holdfast.core.tickets import first_blocker
from holdfast.errors import OutcomeUnknown
from holdfast_lab.checking import history as h
from holdfast_lab.sim.faults import POOLED
from holdfast_lab.sim.recorder import Entry
from holdfast_lab.sim.servers.base import Server
from holdfast_lab.sim.servers.zookeeper.port import (
    NO_ANSWER,
    REJECTED,
    ConnectReply,
    Reply,
    SimConnection,
    SimPort,
    SimSession,
)
from holdfast_lab.sim.servers.zookeeper.tree import Change, Tree, Watch

if TYPE_CHECKING:
    from holdfast.core.ports import Backend
    from holdfast_lab.sim.faults import Faults
    from holdfast_lab.sim.network import Link
    from holdfast_lab.sim.process import Process
    from holdfast_lab.sim.recorder import Recorder
    from holdfast_lab.sim.runtime import SimRuntime
    from holdfast_lab.sim.world import World

T = TypeVar("T")

ROOT = "/sim"
SIZE = 3
TIMEOUT, TIMEOUT_MIN = 6.0, 1.0  # seconds: the usual session timeout, and the shortest that the tick is set for
APPLIED_MAX = 0.02  # seconds until other members have applied a committed write
EPOCH = 1_000_000  # transactions: more than there are in one world
NOTICED_MAX = 1.0  # seconds until a client notices that its connection is lost


class Expired(Exception):
    """The session does not exist any more. Never leaves this package."""


class _Session:
    """A session as the leader knows it."""

    def __init__(self, now: float, connection: int, timeout: float) -> None:
        self.touched = now
        self.connection = connection
        self.timeout = timeout


class Member(Server):
    """One server: what it has applied, and the watches of its clients. It can be cut off and restarted."""

    def __init__(self, ensemble: ZookeeperServer, number: int) -> None:
        super().__init__(ensemble.world, ensemble.recorder)
        self.ensemble = ensemble
        self.number = number
        self.tree = Tree(ensemble.first_number)
        self.applied = 0
        self.starts = 1
        self.reaches_leader = True  # while it is cut off: its requests reach the leader, and no answer returns
        self.active_sessions: set[int] = set()  # since the last ping
        self.watches: dict[Watch, dict[SimSession, int]] = {}  # by session: the connection to notify

    def open(self, link: Link, runtime: SimRuntime) -> Backend:
        raise NotImplementedError  # a method of the ensemble

    def execute(self, step: Callable[[], T]) -> T:
        raise NotImplementedError  # a method of the ensemble

    def tickets(self) -> dict[str, Entry]:
        return self.ensemble.tickets()

    def live(self) -> dict[str, Entry]:
        return self.ensemble.live()

    def break_lock(self, name: str, fence: int) -> None:
        self.ensemble.break_lock(name, fence)

    def catch_up(self, until: int) -> None:
        """Apply committed transactions, and fire watches."""
        while self.applied < min(until, len(self.ensemble.log)):
            for watch in self.tree.apply(self.ensemble.log[self.applied]):
                for session, connection in self.watches.pop(watch, {}).items():
                    session.port.link.notify(session.port.fire, session, connection, watch[1])
            self.applied += 1

    def restart(self) -> None:
        self.ensemble.restarted(self)

    def lose_data(self) -> None:
        self.ensemble.roll_back([], {})

    def back_up(self) -> None:
        self.ensemble.back_up()

    def restore_data(self) -> None:
        self.ensemble.restore_data()

    def disconnect(self) -> None:
        """Close all connections to this member."""
        self.starts += 1
        self.watches.clear()
        self.active_sessions.clear()
        for port in self.ensemble.ports:
            port.notice_later(self)

    def stall_event(self) -> h.Event:
        return self.ensemble.cut_off(self)

    def stall_end_event(self) -> h.Event:
        return self.ensemble.rejoins(self)


class ZookeeperServer(Server):
    """The ensemble."""

    guarantees = GUARANTEES
    # Only the session's timer notices a crash. It also ends sessions from restored data.
    orphaning_faults = frozenset({"crash", "old_data"})
    keeps_order = True  # one connection
    several_ttls = True  # each has a session of its own
    # Sessions end by a monotonic clock. A connection delivers each message once, watches included. Data are lost, or
    # old data are restored, on all members at once: a single member gets lost data from the others.
    excluded_faults = POOLED | {"lose_notification", "step_clock", "leap_clock"}
    node_type = Member
    backend: Callable[..., Any] = ZookeeperBackend

    def __init__(self, world: World, recorder: Recorder) -> None:
        super().__init__(world, recorder)
        # In some worlds the sequence numbers wrap around, as they do after years of use.
        self.first_number = 2**31 - 1 - world.choices.below(20) if world.choices.chance(0.3) else 0
        self._members = [Member(self, number) for number in range(SIZE)]
        self.leader = self._members[0]
        self.log: list[Change] = []
        self.zxid = 0  # the number of the last transaction
        self.sessions: dict[int, _Session] = {}
        self.ports: list[SimPort] = []
        self.session_timeout: float | None = None  # the clients' option; None: sessions follow the ttl
        self.tick = 0.5
        self._last_session = 0
        self._restored: set[int] = set()  # sessions from restored data
        self._replaced: set[str] = set()  # restored nodes whose tickets have newer nodes
        self._copy: tuple[list[Change], dict[int, float]] = ([], {})  # transactions; the timeouts of sessions
        self._commit(CreateParent(ROOT, is_container=False), 0)
        self._ping()

    def prepare(self, faults: Faults, ttl: float) -> None:
        self.tick = max(TIMEOUT_MIN, ttl) / (2 + self.world.choices.below(7))

    @property
    def nodes(self) -> Sequence[Member]:
        return self._members

    def open(self, link: Link, runtime: SimRuntime) -> Backend:
        port = SimPort(self, link, runtime)
        self.ports.append(port)
        config = ZookeeperConfig(
            url="sim://zookeeper",
            hosts="",
            root=ROOT,
            layout="curator",
            raw_names=False,
            session_timeout=self.session_timeout,
            user="",
            password="",
            acl=(),
            tls=None,
        )
        backend: Backend = type(self).backend(config, port, runtime)
        return backend

    # ── requests of clients ──────────────────────────────────────────────────────────────────────────────────────

    def connect(self, member: Member, client: SimSession, connection: int) -> ConnectReply | object:
        """Connect a session, or open one if it has no id. The shortest timeout is two ticks."""
        if not self._answers(member):
            return NO_ANSWER
        number = client.id
        if client.seen > member.tree.zxid:
            return REJECTED
        if not number:
            self._last_session += 1
            number = self._last_session
            timeout = max(client.requested, 2 * self.tick)
            self.sessions[number] = _Session(self.world.now, connection, timeout)
        session = self.sessions.get(number)
        if session is None:
            raise Expired
        session.touched, session.connection = self.world.now, connection
        return ConnectReply(number, member.starts, session.timeout)

    def next_zxid(self, member: Member) -> int | object:
        """The number that a new transaction through this member would get."""
        return self.zxid + 1 if self._answers(member) else NO_ANSWER

    def handle(self, source: SimConnection, requests: Sequence[Request]) -> Reply | object:
        """Execute the requests that were sent on one connection."""
        client, member, number, connection = (
            source.session,
            source.member,
            source.session_id,
            source.connection,
        )
        if member.starts != source.starts or client.dropped == connection:
            raise OutcomeUnknown(backend="sim", problem="connection reset")
        member.active_sessions.add(number)
        if member is self.leader and number in self.sessions:
            self.sessions[number].touched = self.world.now
        answers: list[Answer] = []
        for request in requests:
            if isinstance(request, Children | Get | Ephemerals):
                answer = member.tree.read(request, number)
                if not isinstance(request, Ephemerals) and request.watch and isinstance(answer, list | tuple):
                    member.watches.setdefault((type(request), request.path), {})[client] = connection
                answers.append(answer)
                continue
            is_answered = self._answers(member)
            if not is_answered and not (member.reaches_leader and self._has_majority()):
                return NO_ANSWER
            answers.append(self._write(request, number, connection))
            if not is_answered:
                return NO_ANSWER
            member.catch_up(len(self.log))
        return Reply(answers, member.tree.zxid)

    def close(self, number: int) -> None:
        if self.sessions.pop(number, None) is not None:
            self._end(number)

    def _write(self, request: Request, number: int, connection: int) -> Answer:
        session = self.sessions.get(number)
        if session is None:
            raise Expired
        if session.connection != connection:
            raise OutcomeUnknown(backend="sim", problem="the session has moved")
        tree = self._latest()
        refusal = tree.refusal(request)
        if refusal is not None:
            return refusal
        change = tree.plan(request, number, self.zxid + 1, self.wall())
        self._apply(change)
        return tree.done(request, change)

    def _commit(self, request: Request, session: int) -> None:
        tree = self._latest()
        if tree.refusal(request) is None:
            self._apply(tree.plan(request, session, self.zxid + 1, self.wall()))

    def _apply(self, change: Change) -> None:
        self.log.append(change)
        self.zxid = change.zxid
        world, until = self.world, len(self.log)
        self.leader.catch_up(until)
        for member in self._members:
            if member is not self.leader and not member.is_stalled:
                world.at(world.now + world.choices.between(0.0, APPLIED_MAX), self._apply_later, member, until)

    def _apply_later(self, member: Member, until: int) -> None:
        if not member.is_stalled:
            member.catch_up(until)

    def _latest(self) -> Tree:
        self.leader.catch_up(len(self.log))
        return self.leader.tree

    def _has_majority(self) -> bool:
        return sum(member.is_stalled for member in self._members) <= SIZE // 2

    def _answers(self, member: Member) -> bool:
        """Whether a write through this member is committed and answered."""
        return self._has_majority() and not member.is_stalled

    # ── the leader's timers ──────────────────────────────────────────────────────────────────────────────────────

    def _ping(self) -> None:
        """Twice in a tick: the members report active sessions, and other sessions expire."""
        now = self.world.now
        if self._has_majority():
            for member in self._members:
                if not member.is_stalled:
                    member.catch_up(len(self.log))
                    for number in member.active_sessions:
                        if number in self.sessions:
                            self.sessions[number].touched = now
                    member.active_sessions.clear()
            for number, session in list(self.sessions.items()):
                if math.floor((session.touched + session.timeout) / self.tick + 1) * self.tick <= now:
                    del self.sessions[number]
                    self._end(number)
        self.world.at(now + self.tick / 2, self._ping)

    def _end(self, number: int) -> None:
        for path in self._latest().owned_by(number):
            self._commit(Delete(path), number)
        self.recorder.observe(self.tickets())

    def _elect(self) -> None:
        """Elect a leader if there is a majority: it resets all timers, and all connections are closed."""
        if self._has_majority():
            self.leader = next(member for member in self._members if not member.is_stalled)
            for member in self._members:
                if not member.is_stalled:
                    member.catch_up(len(self.log))
                    member.disconnect()
            for session in self.sessions.values():
                session.touched = self.world.now

    # ── faults ───────────────────────────────────────────────────────────────────────────────────────────────────

    def restarted(self, member: Member) -> None:
        if member is self.leader:
            self._elect()
        else:
            member.disconnect()

    def back_up(self) -> None:
        self._copy = ([*self.log], {number: session.timeout for number, session in self.sessions.items()})

    def restore_data(self) -> None:
        self.roll_back(*self._copy)

    def lose_data(self) -> None:
        self.roll_back([], {})

    def roll_back(self, log: Sequence[Change], sessions: Mapping[int, float]) -> None:
        """Restart all members with old data. The sessions in these data exist again, with new timers."""
        self.log[:] = log
        self.zxid = log[-1].zxid if log else 0
        if log and self.world.choices.chance(0.5):
            # The restored servers elect a leader, and numbers start with its epoch. So a client that has seen no more
            # elections than they have is not rejected. A standalone server has no elections.
            self.zxid += EPOCH
        self._restored.update(sessions)
        self.sessions = {number: _Session(self.world.now, 0, timeout) for number, timeout in sessions.items()}
        for member in self._members:
            member.tree, member.applied = Tree(self.first_number), 0
            member.watches.clear()  # first, because repeated transactions fire no watches
            if not member.is_stalled:
                member.catch_up(len(log))
                member.tree.zxid = self.zxid
            member.disconnect()
        self._latest()
        self.recorder.observe(self.tickets())

    def cut_off(self, member: Member) -> h.Event:
        """Cut a member off from the others. It still answers reads of its clients."""
        member.reaches_leader = member is not self.leader and self.world.choices.chance(0.5)
        if member is self.leader:
            self._elect()
        return h.FaultStarted(self.world.now, "stall", f"member {member.number}")

    def rejoins(self, member: Member) -> h.Event:
        """Connect a member that was cut off again; its clients have to reconnect."""
        had_majority = self._has_majority()
        member.is_stalled = False
        if had_majority:
            member.catch_up(len(self.log))
            member.disconnect()
        else:
            self._elect()
        return h.FaultEnded(self.world.now, "stall", f"member {member.number}")

    def drop(self, process: Process) -> bool:
        return sum(port.drop() for port in self.ports if port.link.process is process) > 0

    # ── state ────────────────────────────────────────────────────────────────────────────────────────────────────

    def tickets(self) -> dict[str, Entry]:
        tickets: dict[str, Entry] = {}
        tree = self.leader.tree
        for lock in sorted(tree.nodes[ROOT].children) if ROOT in tree.nodes else ():
            ordered = queue_entries(tree.nodes[f"{ROOT}/{lock}"].children)
            newest = {entry.nonce: entry for entry in ordered}
            for index, entry in enumerate(ordered):
                if not entry.nonce:
                    continue
                path = f"{ROOT}/{lock}/{entry.node}"
                if tree.nodes[path].owner in self._restored and entry is not newest[entry.nonce]:
                    self._replaced.add(path)  # still replaced after the newer node is deleted
                if path in self._replaced:
                    continue
                granted = first_blocker(entry.limit, ordered[:index]) is None
                if not granted and not entry.waits:
                    continue  # created after another ticket's listing; it will be deleted soon
                czxid = tree.nodes[path].czxid
                key = entry.nonce if entry.nonce not in tickets else f"{entry.nonce}+{czxid}"
                tickets[key] = Entry(lock, czxid, czxid if granted else None, entry.limit, entry.exclusive)
        return tickets

    def live(self) -> dict[str, Entry]:
        return self.tickets()

    def break_lock(self, name: str, fence: int) -> None:
        for path, node in list(self._latest().nodes.items()):
            if path.startswith(f"{ROOT}/{name}/") and node.czxid == fence:
                self.execute(lambda path=path: self._commit(Delete(path), 0))  # type: ignore[misc]  # mypy does not infer the lambda
