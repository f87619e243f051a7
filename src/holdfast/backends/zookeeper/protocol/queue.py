"""The lock protocol on ZooKeeper: each ticket an ephemeral node with a number, and who is first is in.

    enter     create a node below the lock's node and list the children, in one round trip. In, if the rule says so of
              those with smaller numbers; else watch the nearest one in the way, and look again when it has gone.
    leave     delete the node.
    renew     write, and look whether the node is still there. The session keeps it there, and the pulse proves that:
              pairs of writes in the background, committed by a quorum, for all tickets together (pulse.py).

A node counts for a ticket only if its name carries the ticket's nonce *and* the session that is open now: one of an
older session of ours may vanish at any moment. A listing can be late, but never so that it misses anybody ahead: it
shows our own node, so it shows all that were created before. All that can be missing from it is that somebody has left.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import TYPE_CHECKING, ClassVar, TypeVar

from holdfast.backends.zookeeper.port import (
    Children,
    Create,
    Created,
    Delete,
    Get,
    Node,
    Refusal,
    Set,
)
from holdfast.backends.zookeeper.protocol import nodes
from holdfast.backends.zookeeper.protocol.fences import Fences
from holdfast.backends.zookeeper.protocol.guarantees import GUARANTEES, LACKS
from holdfast.backends.zookeeper.protocol.heartbeat import Heartbeats
from holdfast.backends.zookeeper.protocol.nodes import QueueEntry, queue_entries, sequence_distance
from holdfast.backends.zookeeper.protocol.parents import ATTEMPTS_MAX, Parents
from holdfast.backends.zookeeper.protocol.records import encode_record, holder_name
from holdfast.backends.zookeeper.protocol.registers import Registers
from holdfast.backends.zookeeper.protocol.tree import Tree
from holdfast.core.clock import before_delay, lease_deadline
from holdfast.core.tickets import (
    POLL_INTERVAL,
    Granted,
    LeaseGone,
    Live,
    LockInfo,
    Ticket,
    Waiting,
    first_blocker,
)
from holdfast.core.wakeups import Wakeups
from holdfast.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    HoldfastError,
    LimitConflict,
    OutcomeUnknown,
)
from holdfast.guarantees import FenceOrder, Guarantees

if TYPE_CHECKING:
    from holdfast.backends.zookeeper.config import ZookeeperConfig
    from holdfast.backends.zookeeper.port import Answer, Request, Session, ZookeeperPort
    from holdfast.core.ports import Runtime


DELAY_SHARE = 0.25  # of the session's timeout: half of it is proven at any time, and half of that is for the holder
SESSION_CLOSED = "the session with ZooKeeper is over: it expired, or somebody ended it"
ROLLED_BACK = "the session with ZooKeeper is over: the servers came back with older data than this client has seen"
CONNECTIONS_MAX = 3  # on which a request is tried, while each is lost before the answer
# The second in line looks often too: should the first be stopped when its turn comes, it is the next to know.
_POLL_OFTEN = 2
_POLL_INTERVAL_BEHIND = (
    10.0  # seconds, for the others: a watch is lost only with its connection, and then all look again
)

# Of the session's timeout: a new lease lasts for so much longer than until more can be proven, to be renewed then.
_SPARE_SHARE = 1 / 12

_Watch = tuple["Session", type[Children | Get], str]


T = TypeVar("T")
_Request = Callable[["Session", Sequence[str], float], Awaitable["list[Answer]"]]  # about some paths, of one session


class TicketNode:
    """A ticket's node, as far as we know."""

    __slots__ = ("czxid", "deadline", "granted", "number", "path", "session", "ticket", "waited")

    def __init__(self, ticket: Ticket, session: Session, path: str, czxid: int) -> None:
        self.ticket = ticket
        self.session = session
        self.path = path
        self.czxid = czxid
        found = nodes.parse_node(path.rpartition("/")[2])
        self.number = 0 if found is None else found.number
        self.granted = False
        self.waited = False
        self.deadline = 0.0  # the last deadline that was given out for it: nobody believes in it any longer

    @property
    def kept_until(self) -> float:
        """When it may go, if nobody gives it back: its holder's time is over, and the lock's delay too."""
        delay = self.ticket.delay
        return before_delay(self.deadline, delay) + delay if delay else self.deadline


class ZookeeperBackend:
    """Locks in one ensemble, in order."""

    lacks = LACKS
    liveness_fds: tuple[int, ...] = ()  # the ensemble sees the connection of this client, and nobody else's
    heartbeats_type: ClassVar[type[Heartbeats]] = Heartbeats

    def __init__(self, config: ZookeeperConfig, port: ZookeeperPort, runtime: Runtime) -> None:
        self.url = config.url
        self._layout = config.layout
        self._port = port
        self._runtime = runtime
        self._wakeups = Wakeups(runtime)
        self._mutex = runtime.mutex()
        self._ticket_nodes: dict[str, TicketNode] = {}  # by nonce
        # Tickets of which a create has no answer (yet), with its session: there may be a node of theirs.
        self._unanswered: dict[str, Session] = {}
        self._released_later: dict[str, Ticket] = {}  # tickets that the heartbeat of their session has to release
        self._watched: dict[_Watch, list[str]] = {}  # watches that are set, and the nonces of who waits, in order
        self._gone: Callable[[Hashable, str], None] = lambda *_: None
        self._fences = Fences(config.url)
        self._parents = Parents(config.url)
        self._tree = Tree(config, port, self._parents)
        self._registers = Registers(config.url, config.root, port, runtime, self._parents)
        self._heartbeats = self.heartbeats_type(config, port, self._parents, runtime, self)
        port.on_events(self._on_watch, self._on_session_change)

    @property
    def guarantees(self) -> Guarantees:
        return GUARANTEES._replace(fence=FenceOrder.BEST_EFFORT) if self._fences.problem else GUARANTEES

    @property
    def warnings(self) -> tuple[str, ...]:
        late = tuple(
            f"{self.url}: the servers end the session of a dead holder after {timeout:g} s, so its lock is free later "
            f"than its ttl of {ttl:g} s says (minSessionTimeout, session_timeout=, or more than three ttls in use)"
            for timeout, ttl in self._heartbeats.late_timeouts()
        )
        return (*late, self._fences.problem) if self._fences.problem else late

    # ── enter ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def try_acquire(self, ticket: Ticket, *, queue: bool, deadline: float) -> Granted | Waiting:
        try:
            # By its nonce it is the same question each time.
            return await self._retry_on_reconnect(
                lambda: self._session_of(ticket, deadline),
                lambda session: self._try_acquire(ticket, session, queue=queue, deadline=deadline),
                deadline,
            )
        except BackendUnavailable as error:
            # It was said of one request of several: with a node there, or perhaps there, something has changed.
            if ticket.nonce in self._ticket_nodes or ticket.nonce in self._unanswered:
                raise OutcomeUnknown(backend=self.url, problem=error.problem) from error
            raise
        except ConfigurationError:
            # Nobody will ask for it to be taken away: the sweep does that.
            ticket_node = self._ticket_nodes.get(ticket.nonce)
            if ticket_node is not None:
                ticket_node.deadline, ticket_node.granted = 0.0, True
            raise

    async def _retry_on_reconnect(
        self, open_session: Callable[[], Awaitable[Session]], work: Callable[[Session], Awaitable[T]], deadline: float
    ) -> T:
        """What this comes to, if need be on the next connection or in the next session.

        A process that stood still finds that the servers have ended its connection or its session meanwhile. That says
        nothing of the servers, so it is no reason to fail while there is time.
        """
        for _ in range(CONNECTIONS_MAX - 1):
            session = await open_session()
            connection = session.connection
            try:
                return await work(session)
            except BackendError:
                is_lost = session.is_closed or session.connection != connection
                if not is_lost or self._runtime.now() >= deadline:
                    raise
        return await work(await open_session())

    async def _try_acquire(
        self, ticket: Ticket, session: Session, *, queue: bool, deadline: float
    ) -> Granted | Waiting:
        self._check_delay(ticket, session)
        lock = self._tree.lock_path(ticket.name)
        nonce = ticket.nonce
        while True:
            sent = self._runtime.now()
            ticket_node = self._ticket_nodes.get(nonce)
            if ticket_node is not None and ticket_node.session is not session:
                self._forget(nonce)  # it went with its session, and so did the place
                if ticket_node.session.rolled_back:
                    self._unanswered[nonce] = session  # unless it is in the older data: then it is deleted
                ticket_node = None
            if ticket_node is not None:
                children = await self._tree.children(session, lock, deadline)
            elif nonce in self._unanswered or not queue:
                look = self._children_after_write if nonce in self._unanswered else self._tree.children
                found = queue_entries(await look(session, lock, deadline))
                ticket_node = await self._find_own_node(ticket, session, lock, found, deadline)
                if ticket_node is None:
                    blocker = self._blocker(ticket, [one for one in found if one.nonce != nonce])
                    if blocker is not None and not queue:
                        return Waiting(POLL_INTERVAL, await self._holder(session, f"{lock}/{found[0].node}", deadline))
                    ticket_node, children = await self._create(ticket, session, lock, deadline, waits=queue)
                else:
                    children = [one.node for one in found]
            else:
                ticket_node, children = await self._create(ticket, session, lock, deadline, waits=queue)
            outcome = await self._decide(ticket_node, lock, children, sent, queue=queue, deadline=deadline)
            if outcome is not None:
                return outcome

    async def _session_of(self, ticket: Ticket, deadline: float) -> Session:
        """The one that its node is in, or may be in. Only behind a request of that one a listing shows such a node."""
        ticket_node = self._ticket_nodes.get(ticket.nonce)
        session = self._unanswered.get(ticket.nonce) if ticket_node is None else ticket_node.session
        if session is not None and not session.is_closed:
            return await self._heartbeats.reopen(session, deadline)
        return await self._heartbeats.open(_session_timeout(ticket), deadline)

    async def _create(
        self, ticket: Ticket, session: Session, lock: str, deadline: float, *, waits: bool
    ) -> tuple[TicketNode, list[str]]:
        create = self._create_request(ticket, session, lock, waits=waits)
        for _ in range(ATTEMPTS_MAX):
            # With what is missing above it in the same breath: tasks that begin together stay in their order.
            parents, greatest = self._parents.creates_if_unknown(lock), self._fences.greatest
            self._unanswered[ticket.nonce] = session
            try:
                answers = await self._port.call(session, (*parents, create, Children(lock)), deadline=deadline)
            except BaseException as error:
                self._clear_refused(error, ticket)
                raise
            created, children = answers[-2:]
            if isinstance(created, Created):
                self._fences.check_fence(created.czxid, greatest)
                ticket_node = self._ticket_nodes[ticket.nonce] = TicketNode(
                    ticket, session, created.path, created.czxid
                )
                self._unanswered.pop(ticket.nonce, None)
                self._parents.add_known(lock)
                return ticket_node, self._tree.children_of(children)
            self._unanswered.pop(ticket.nonce, None)
            if created is not Refusal.NO_NODE:
                raise self._parents.error_for(created, lock)
            self._parents.handle_missing(lock, answers[:-2])
        raise BackendUnavailable(backend=self.url, problem=f"{lock} was taken away as often as it was made")

    def _clear_refused(self, error: BaseException, *tickets: Ticket) -> None:
        """A create without an answer, or one that was cancelled before it, may still arrive; a refused one does not."""
        if isinstance(error, HoldfastError) and not isinstance(error, OutcomeUnknown):
            for ticket in tickets:
                self._unanswered.pop(ticket.nonce, None)

    def _create_request(self, ticket: Ticket, session: Session, lock: str, *, waits: bool) -> Create:
        node_prefix = nodes.node_prefix(
            self._layout, session.id, ticket.nonce, ticket.limit, exclusive=ticket.exclusive, waits=waits
        )
        return Create(f"{lock}/{node_prefix}", encode_record(ticket, session))

    def _check_delay(self, ticket: Ticket, session: Session) -> None:
        """What keeps others out after the holder's end is the session, which ends by a timer of its own."""
        if ticket.delay > DELAY_SHARE * session.timeout + 0.001:
            raise ConfigurationError(
                f"lock_delay must be at most a quarter of the session's timeout, which is {session.timeout:g} s: give "
                f"{self.url} a session_timeout of {ticket.delay / DELAY_SHARE:g}, and servers a maxSessionTimeout that "
                "allows it"
            )

    async def _find_own_node(
        self, ticket: Ticket, session: Session, lock: str, found: Sequence[QueueEntry], deadline: float
    ) -> TicketNode | None:
        """The node that a create without an answer has left. One of an older session is deleted, never used."""
        kept: TicketNode | None = None
        for one in found:
            if one.nonce != ticket.nonce:
                continue
            path = f"{lock}/{one.node}"
            if self._is_current(one, session) and kept is None:
                (node,) = await self._port.call(session, (Get(path),), deadline=deadline)
                if isinstance(node, Node):
                    kept = self._ticket_nodes[ticket.nonce] = TicketNode(ticket, session, path, node.czxid)
            else:
                await self._port.call(session, (Delete(path),), deadline=deadline)
        self._unanswered.pop(ticket.nonce, None)
        return kept

    def _is_current(self, one: QueueEntry, session: Session) -> bool:
        """The node goes with the session that is open now: who made it is in its name, and it is ephemeral."""
        return one.session == session.id

    async def _decide(
        self, ticket_node: TicketNode, lock: str, children: Sequence[str], sent: float, *, queue: bool, deadline: float
    ) -> Granted | Waiting | None:
        """In, or in the queue with a watch set; None: look again at once."""
        ticket, session = ticket_node.ticket, ticket_node.session
        if len(children) == 1 and ticket_node.path.endswith(children[0]):  # nobody else is there
            return self._wait_for_proof(ticket_node, queue=queue) or self._grant(ticket_node, sent, is_followed=False)
        ordered = queue_entries(children)
        if not any(one.nonce == ticket.nonce for one in ordered):
            # It was deleted by another program; to be sure of that, it is looked for. In this order: see `orphans_in`.
            self._unanswered[ticket.nonce] = session
            self._forget(ticket.nonce)
            return None
        ahead = self._ahead(ticket_node, ordered)
        try:
            blocker = self._blocker(ticket, ahead)
        except LimitConflict:
            await self._withdraw(ticket_node, deadline)
            raise
        if blocker is None:
            is_followed = ordered[-1].nonce != ticket.nonce
            return self._wait_for_proof(ticket_node, queue=queue) or self._grant(
                ticket_node, sent, is_followed=is_followed
            )
        if not queue:
            await self._withdraw(ticket_node, deadline)
            return Waiting(POLL_INTERVAL, await self._holder(session, f"{lock}/{ahead[0].node}", deadline))
        ticket_node.waited = True
        self._wakeups.expect(ticket.nonce)
        holder = Get(f"{lock}/{ahead[0].node}")
        watch = self._watch(lock, ticket, ahead, blocker)
        kind = (session, type(watch), watch.path)
        with self._mutex:
            is_set = kind in self._watched
            waiting = self._watched.setdefault(kind, [])
            if ticket.nonce not in waiting:
                waiting.append(ticket.nonce)
        if is_set:
            (shown,) = await self._port.call(session, (holder,), deadline=deadline)
        else:
            try:
                answer, shown = await self._port.call(session, (watch, holder), deadline=deadline)
            except BaseException:
                self._wake_watchers(kind)  # it may be set or not: who has relied on it looks again
                raise
            if answer is Refusal.NO_NODE:
                self._wake_watchers(kind)
                return None
        before = len(ahead) - (0 if blocker.exclusive else (ticket.limit or 1) - 1)
        return Waiting(POLL_INTERVAL if before <= _POLL_OFTEN else _POLL_INTERVAL_BEHIND, holder_name(shown))

    def _ahead(self, ticket_node: TicketNode, ordered: Sequence[QueueEntry]) -> list[QueueEntry]:
        return [one for one in ordered if sequence_distance(one.number, ticket_node.number) < 0]

    def _blocker(self, ticket: Ticket, ahead: Sequence[QueueEntry]) -> QueueEntry | None:
        """By the rule. Raises LimitConflict if those ahead share the lock on other terms."""
        if not ticket.exclusive:
            for one in ahead:
                if not one.exclusive and one.limit != ticket.limit:
                    raise LimitConflict(lock=ticket.name, ours=ticket.limit, theirs=one.limit)
        return first_blocker(ticket.limit, ahead)

    def _watch(self, lock: str, ticket: Ticket, ahead: Sequence[QueueEntry], blocker: QueueEntry) -> Children | Get:
        """The one thing after which it is worth to look again."""
        if blocker.exclusive:
            # The nearest exclusive one. A node without children has a children watch that fires when it goes, and not
            # when its data change.
            nearest = next(one for one in reversed(ahead) if one.exclusive)
            return Children(f"{lock}/{nearest.node}", watch=True)
        if ticket.exclusive:
            return Children(f"{lock}/{ahead[-1].node}", watch=True)
        if len(ahead) == ticket.limit:
            return Children(lock, watch=True)  # the next in line: any permit that is given back will do
        # Behind others in line: the one before will write to its node when it gets in, and is the next no more.
        return Get(f"{lock}/{ahead[-1].node}", watch=True)

    def _wait_for_proof(self, ticket_node: TicketNode, *, queue: bool) -> Waiting | None:
        """Have it wait until more of its session is proven, if its lease would end before, and could not be renewed.

        That is so if the process was paused while it waited.
        """
        ticket, session, now = ticket_node.ticket, ticket_node.session, self._runtime.now()
        spare, next_proof = session.timeout * _SPARE_SHARE, self._heartbeats.next_proof(session)
        is_proven = before_delay(self._heartbeats.proven(session), ticket.delay) >= next_proof + spare
        if is_proven or not queue or ticket_node.granted or session.is_closed:
            return None
        ticket_node.waited = True
        self._wakeups.expect(ticket.nonce)
        return Waiting(next_proof - now + spare / 2)

    def _grant(self, ticket_node: TicketNode, sent: float, *, is_followed: bool) -> Granted:
        ticket, session = ticket_node.ticket, ticket_node.session
        if session.is_closed:
            raise BackendUnavailable(backend=self.url, problem=SESSION_CLOSED)
        deadline = ticket_node.deadline = max(ticket_node.deadline, self._deadline(ticket_node, sent))
        if not ticket_node.granted:
            ticket_node.granted = True  # after `deadline`: the sweep looks at both
            if ticket_node.waited or (is_followed and not ticket.exclusive):
                # Tells since when it has the lock, and the next in line for a permit that it is the next.
                self._port.send(session, Set(ticket_node.path, encode_record(ticket, session)))
            if ticket_node.waited:
                self._wakeups.forget(ticket.nonce)
        return Granted(ticket_node.czxid, deadline, store=session)

    def _deadline(self, ticket_node: TicketNode, sent: float) -> float:
        """The session's, or the ttl's if that is earlier."""
        return min(lease_deadline(sent, ticket_node.ticket.ttl, 0.0), self._heartbeats.proven(ticket_node.session))

    async def _withdraw(self, ticket_node: TicketNode, deadline: float) -> None:
        await self._port.call(ticket_node.session, (Delete(ticket_node.path),), deadline=deadline)
        self._forget(ticket_node.ticket.nonce)

    # ── several at once ──────────────────────────────────────────────────────────────────────────────────────────

    async def try_acquire_all(self, tickets: Sequence[Ticket], *, deadline: float) -> list[Granted | Waiting]:
        """All listings in one round trip, and all nodes where nobody is in another; what is busy, by itself."""
        outcomes = await self._retry_on_reconnect(
            lambda: self._heartbeats.open(_session_timeout(tickets[0]), deadline),
            lambda session: self._acquire_free(tickets, session, deadline),
            deadline,
        )
        if not outcomes:
            outcomes = [await self.try_acquire(tickets[0], queue=False, deadline=deadline)]
        await self._withdraw_rest(tickets[len(outcomes) :], deadline)
        return outcomes

    async def _acquire_free(
        self, tickets: Sequence[Ticket], session: Session, deadline: float
    ) -> list[Granted | Waiting]:
        """Those at which nobody is, up to the first other one; or up to one at which somebody came in between.

        Only those that need the same session as the first: for the others it would be another question.
        """
        needed = _session_timeout(tickets[0])
        alike = list(itertools.takewhile(lambda ticket: _session_timeout(ticket) == needed, tickets))
        sent = self._runtime.now()
        made = await self._create_free(alike, session, deadline)
        outcomes: list[Granted | Waiting] = []
        for ticket_node, children in made:
            lock = self._tree.lock_path(ticket_node.ticket.name)
            outcome = await self._decide(ticket_node, lock, children, sent, queue=False, deadline=deadline)
            outcomes.append(outcome or await self.try_acquire(ticket_node.ticket, queue=False, deadline=deadline))
            if isinstance(outcomes[-1], Waiting):
                break
        return outcomes

    async def _create_free(
        self, tickets: Sequence[Ticket], session: Session, deadline: float
    ) -> list[tuple[TicketNode, list[str]]]:
        """The nodes of the first tickets, where nobody was; each with what is there now.

        Raises:
            OutcomeUnknown: no answer; there may be nodes.
        """
        locks = [self._tree.lock_path(ticket.name) for ticket in tickets]
        listed = await self._port.call(session, [Children(lock) for lock in locks], deadline=deadline)
        free: list[tuple[Ticket, str]] = []
        for ticket, lock, children in zip(tickets, locks, listed, strict=True):
            self._check_delay(ticket, session)
            is_known = (
                ticket.nonce in self._ticket_nodes or ticket.nonce in self._unanswered
            )  # `try_acquire` looks for its node
            if is_known or queue_entries(self._tree.children_of(children)):
                break
            free.append((ticket, lock))
        if not free:
            return []
        parents = dict.fromkeys(parent for _, lock in free for parent in self._parents.creates_if_unknown(lock))
        requests: list[Request] = [*parents]
        for ticket, lock in free:
            requests += [self._create_request(ticket, session, lock, waits=False), Children(lock)]
        greatest = self._fences.greatest
        self._unanswered.update((ticket.nonce, session) for ticket, _ in free)
        try:
            answers = await self._port.call(session, requests, deadline=deadline)
        except BaseException as error:
            self._clear_refused(error, *(ticket for ticket, _ in free))
            raise
        made: list[tuple[TicketNode, list[str]]] = []
        refused: HoldfastError | None = None
        for number, (ticket, lock) in enumerate(free):
            created, children = answers[len(parents) + 2 * number :][:2]
            if isinstance(created, Created):
                self._fences.check_fence(created.czxid, greatest)
                ticket_node = self._ticket_nodes[ticket.nonce] = TicketNode(
                    ticket, session, created.path, created.czxid
                )
                self._parents.add_known(lock)
                if len(made) == number:
                    made.append((ticket_node, self._tree.children_of(children)))
            elif created is not Refusal.NO_NODE:
                refused = self._parents.error_for(created, lock)
            # Else the lock's node was taken away meanwhile: it and those behind it are not in.
            self._unanswered.pop(ticket.nonce, None)
        if refused is not None:
            raise refused
        return made

    async def _withdraw_rest(self, tickets: Sequence[Ticket], deadline: float) -> None:
        """These are not in, for one before them is not; but they may have nodes."""
        made = [ticket for ticket in tickets if ticket.nonce in self._ticket_nodes or ticket.nonce in self._unanswered]
        for outcome in await self.release(made, deadline=deadline) if made else ():
            if isinstance(outcome, BackendError):
                raise OutcomeUnknown(backend=self.url, problem=outcome.problem)

    # ── wait, leave, renew ───────────────────────────────────────────────────────────────────────────────────────

    async def wait(self, ticket: Ticket, until: float) -> None:
        await self._wakeups.wait(ticket.nonce, until)

    async def release(self, tickets: Sequence[Ticket], *, deadline: float) -> list[bool | BackendError]:
        for ticket in tickets:
            if ticket.nonce in self._unanswered:
                await self._delete_unanswered(ticket, deadline)
        there = [self._ticket_nodes.get(ticket.nonce) for ticket in tickets]
        left = await self._for_each_session(there, self._delete, deadline)
        outcomes: list[bool | BackendError] = []
        for ticket, ticket_node in zip(tickets, there, strict=True):
            answer = left.get(ticket_node.path, Refusal.NO_NODE) if ticket_node is not None else Refusal.NO_NODE
            if answer is None or answer is Refusal.NO_NODE:
                self._forget(ticket.nonce)
                outcomes.append(ticket_node is not None and ticket_node.granted and answer is None)
            elif isinstance(answer, BackendError):
                outcomes.append(answer)
            else:
                outcomes.append(BackendUnavailable(backend=self.url, problem=f"not deleted: {answer}"))
        return outcomes

    async def _delete(self, session: Session, paths: Sequence[str], deadline: float) -> list[Answer]:
        return await self._port.call(session, [Delete(path) for path in paths], deadline=deadline)

    async def _for_each_session(
        self, ticket_nodes: Sequence[TicketNode | None], request: _Request, deadline: float
    ) -> dict[str, Answer | BackendError]:
        """The answers about their nodes, by path, or the error in place of one. Nodes of ended sessions have none.

        Each session gets its share of the time, so that one whose server does not answer does not hold up the others.
        """
        by_session: dict[Session, list[str]] = {}
        for ticket_node in ticket_nodes:
            if ticket_node is not None and not ticket_node.session.is_closed:
                by_session.setdefault(ticket_node.session, []).append(ticket_node.path)
        answers: dict[str, Answer | BackendError] = {}
        for number, (session, paths) in enumerate(by_session.items()):
            now = self._runtime.now()
            limit = now + (deadline - now) / (len(by_session) - number)
            try:
                if await self._heartbeats.reopen(session, limit) is session:
                    answers.update(zip(paths, await request(session, paths, limit), strict=True))
            except BackendError as error:
                if len(by_session) == 1:
                    raise
                answers.update((path, error) for path in paths)
        return answers

    async def _delete_unanswered(self, ticket: Ticket, deadline: float) -> None:
        """Take away what a create without an answer may have left."""
        session = await self._session_of(ticket, deadline)
        lock = self._tree.lock_path(ticket.name)
        found = queue_entries(await self._children_after_write(session, lock, deadline))
        paths = [f"{lock}/{one.node}" for one in found if one.nonce == ticket.nonce]
        if paths:
            await self._port.call(session, [Delete(path) for path in paths], deadline=deadline)
        self._unanswered.pop(ticket.nonce, None)

    async def renew(self, tickets: Sequence[Ticket], *, deadline: float) -> list[Live | LeaseGone | BackendError]:
        sent = self._runtime.now()
        there = [self._ticket_nodes.get(ticket.nonce) for ticket in tickets]
        seen = await self._for_each_session(there, self._listed_after_write, deadline)
        outcomes: list[Live | LeaseGone | BackendError] = []
        for ticket_node in there:
            if ticket_node is None:
                outcomes.append(LeaseGone())
            elif ticket_node.session.is_closed:
                outcomes.append(LeaseGone(_close_reason(ticket_node.session)))
            elif isinstance(answer := seen.get(ticket_node.path), list):
                ticket_node.deadline = max(ticket_node.deadline, self._deadline(ticket_node, sent))
                outcomes.append(Live(ticket_node.deadline))
            elif isinstance(answer, BackendError):
                outcomes.append(answer)
            else:
                outcomes.append(LeaseGone())
        return outcomes

    async def _listed_after_write(self, session: Session, paths: Sequence[str], deadline: float) -> list[Answer]:
        """The children of tickets' nodes, which have none: an empty list proves that the node exists.

        The write before the listings makes the server apply everything that was committed before it. Without it, a
        server that is cut off from the leader would show a node forever that an operator has deleted. Its answer does
        not matter: a refused write is ordered by the leader too.
        """
        requests: list[Request] = [Set(self._heartbeats.node_path(session), b""), *map(Children, paths)]
        _, *answers = await self._port.call(session, requests, deadline=deadline)
        return answers

    def intact(self, store: Hashable) -> bool:
        return not getattr(store, "is_over", False)

    # ── marks ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def advance_register(self, name: str, number: int, *, nonce: str, keep: float, deadline: float) -> bool:
        return await self._in_any_session(
            lambda session: self._registers.advance(session, name, number, nonce=nonce, keep=keep, deadline=deadline),
            deadline,
        )

    async def read_registers(self, names: Sequence[str], *, deadline: float) -> list[int]:
        return await self._in_any_session(lambda session: self._registers.read(session, names, deadline), deadline)

    # ── for operators ────────────────────────────────────────────────────────────────────────────────────────────

    async def inspect(self, name: str, *, deadline: float) -> LockInfo:
        return await self._in_any_session(
            lambda session: self._tree.inspect(session, name, deadline), deadline, creates=False
        )

    async def locks(self, prefix: str, *, deadline: float) -> list[LockInfo]:
        return await self._in_any_session(
            lambda session: self._tree.locks(session, prefix, deadline), deadline, creates=False
        )

    async def break_lock(self, name: str, fence: int, *, deadline: float) -> bool:
        # Not repeated: whether it was this one that broke the lock, a second answer would not tell.
        session = await self._heartbeats.open_any(deadline, creates=False)
        return await self._tree.break_lock(session, name, fence, deadline)

    async def _in_any_session(
        self, work: Callable[[Session], Awaitable[T]], deadline: float, *, creates: bool = True
    ) -> T:
        """In any session: nothing that it leaves belongs to one."""
        return await self._retry_on_reconnect(
            lambda: self._heartbeats.open_any(deadline, creates=creates), work, deadline
        )

    # ── at each pulse ────────────────────────────────────────────────────────────────────────────────────────────

    def is_needed(self, session: Session) -> bool:
        ticket_nodes, unheard = list(self._ticket_nodes.values()), list(self._unanswered.values())
        return session in unheard or any(one.session is session for one in ticket_nodes)

    async def sweep(self, session: Session, deadline: float) -> None:
        """Take away leases that were dropped: nobody has renewed them, and nobody believes in them any longer.

        And release the tickets that the engine could not start a thread for.
        """
        for ticket in list(self._released_later.values()):
            try:
                (answer,) = await self.release([ticket], deadline=deadline)
            except BackendError:
                return  # the next heartbeat tries again
            if not isinstance(answer, BackendError):
                self._released_later.pop(ticket.nonce, None)
        now = self._runtime.now()
        there = [one for one in list(self._ticket_nodes.values()) if one.session is session or one.session.is_closed]
        over = [one for one in there if one.granted and one.kept_until < now]
        for ticket_node in over:
            try:
                if not ticket_node.session.is_closed:
                    await self._port.call(session, (Delete(ticket_node.path),), deadline=deadline)
                self._forget(ticket_node.ticket.nonce)
            except BackendError:
                return  # the next pulse tries again

    def orphans_in(self, session: Session, paths: Sequence[str]) -> list[str]:
        """Which of these ephemeral nodes of the session belong to no ticket of ours.

        Servers that were restored from a copy can have a node again that was released after the copy was made. If they
        have the session too, it would keep that node. A node of a request without an answer stays.
        `_unanswered` is read before `_ticket_nodes`, because an answer moves a ticket from the first to the second.
        """
        released: list[str] = []
        for path in paths:
            found = nodes.parse_node(path.rpartition("/")[2])
            if found is None or not found.nonce or found.nonce in self._unanswered:
                continue
            ticket_node = self._ticket_nodes.get(found.nonce)
            if ticket_node is None or ticket_node.session is not session or ticket_node.path != path:
                released.append(path)
        return released

    def next_sweep(self, session: Session) -> float:
        now = self._runtime.now()
        there = [one for one in list(self._ticket_nodes.values()) if one.session is session]
        granted = [one.kept_until for one in there if one.granted]
        return min((until for until in granted if until > now), default=math.inf)

    # ── what the port tells ──────────────────────────────────────────────────────────────────────────────────────

    def _on_watch(self, session: Session, path: str) -> None:
        self._wake_watchers((session, Children, path))
        self._wake_watchers((session, Get, path))

    def _wake_watchers(self, kind: _Watch) -> None:
        with self._mutex:
            waiting = self._watched.pop(kind, ())
        for nonce in waiting:
            self._wakeups.wake(nonce)

    def _on_session_change(self, session: Session) -> None:
        """The session or its connection came or went, and watches with it: everybody looks again."""
        with self._mutex:
            self._forget_watches(session)
        self._wakeups.wake_all()
        self._heartbeats.changed(session)
        if session.is_closed:
            self._fences.observe(session.seen)
            self._gone(session, _close_reason(session))  # last: what is told of it may take its time

    def release_later(self, ticket: Ticket) -> None:
        if ticket.nonce in self._ticket_nodes or ticket.nonce in self._unanswered:
            self._released_later[ticket.nonce] = ticket

    def on_gone(self, report: Callable[[Hashable, str], None]) -> None:
        self._gone = report

    def _forget_watches(self, session: Session) -> None:
        self._watched = {watch: waiting for watch, waiting in self._watched.items() if watch[0] is not session}

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def close(self) -> None:
        self._heartbeats.close()
        self._wakeups.wake_all()
        # What was lost and not given back keeps others out for its delay: it must not go with the session at once.
        is_delayed = any(one.granted and one.ticket.delay for one in list(self._ticket_nodes.values()))
        await self._port.close(keeps_session=is_delayed)

    def without_loop(self) -> None:
        self._port.without_loop()

    def abandon(self) -> None:
        self._heartbeats.abandon()
        self._port.abandon()

    # ── small things ─────────────────────────────────────────────────────────────────────────────────────────────

    async def _children_after_write(self, session: Session, lock: str, deadline: float) -> list[str]:
        """The listing behind every create of ours, wherever it is.

        A server that we have just moved to may lag behind what another one did for us. So there is a write before the
        listing: then it has applied all that was done before that; and what is still on its way from the server that
        the session has moved away from, the leader refuses.
        """
        write = self._parents.create(lock)  # which is there already, mostly
        _, children = await self._port.call(session, (write, Children(lock)), deadline=deadline)
        return self._tree.children_of(children)

    async def _holder(self, session: Session, path: str, deadline: float) -> str:
        (node,) = await self._port.call(session, (Get(path),), deadline=deadline)
        return holder_name(node)

    def _forget(self, nonce: str) -> None:
        self._ticket_nodes.pop(nonce, None)
        self._wakeups.forget(nonce)


def _close_reason(session: Session) -> str:
    return ROLLED_BACK if session.rolled_back else SESSION_CLOSED


def _session_timeout(ticket: Ticket) -> float:
    """Seconds that its session is to last without a word from the client: its ttl, and enough for the lock's delay."""
    return max(ticket.ttl, ticket.delay / DELAY_SHARE)
