"""Which nodes answer, which of them count, and what is still owed to those that do not answer.

A silent node would make every call wait for its time limit. So only the first one does. From then on it is left out,
unless without it there is no majority anyway, and asked in the background, after pauses that grow, whether it is back.
What it should have been told it is told there too: to take back a vote that nobody wants any more, until it answers or
the vote has run out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from holdfast.backends.redis.port import Call
from holdfast.backends.redis.protocol.keys import keys_of
from holdfast.backends.redlock import lua
from holdfast.core.events import logger
from holdfast.errors import BackendError, BackendUnavailable, HoldfastError, NameConflict, OutcomeUnknown, QuorumError

if TYPE_CHECKING:
    from holdfast.backends.redis.port import Reply
    from holdfast.backends.redlock.config import RedlockConfig
    from holdfast.backends.redlock.port import RedlockPort, ServerRun
    from holdfast.core.ports import Runtime
    from holdfast.core.tickets import Ticket

PAUSE_MIN, PAUSE_MAX = 0.5, 10.0  # seconds before a silent node is asked again
IDLE_MAX = 30.0  # seconds without a call of this client's after which nobody asks any more
BATCH_MAX = 200  # debts that are paid to one node at once


class _Outage(NamedTuple):
    until: float  # when to ask it again
    pause: float
    error: HoldfastError


class _PendingRelease(NamedTuple):
    ticket: Ticket
    attempt: int
    is_over: bool
    until: float  # when the vote has run out by itself


class NodeHealth:
    """The nodes of one client."""

    def __init__(self, config: RedlockConfig, port: RedlockPort, runtime: Runtime) -> None:
        self._config = config
        self._port = port
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._nodes = list(range(len(port.nodes)))
        self._quorum = len(port.nodes) // 2 + 1
        self._unresponsive: dict[int, _Outage] = {}
        self._returns: dict[int, tuple[float, float]] = {}  # when it was back, and after which pause
        self._pending_releases: dict[tuple[int, str], _PendingRelease] = {}
        self._used_at = 0.0
        self._is_working = False
        self._closed = False
        self._wakeup = runtime.event()

    @property
    def unresponsive(self) -> dict[int, HoldfastError]:
        """The nodes that did not answer when they were asked last, and why."""
        return {number: silence.error for number, silence in dict(self._unresponsive).items()}

    def responsive(self) -> list[int]:
        """Whom to ask now."""
        if not self._unresponsive:
            return self._nodes
        now = self._used_at = self._runtime.now()
        self._ensure_worker()
        silent = dict(self._unresponsive)
        # One whose time has come long ago has nobody in the background who asks it: its turn has come here.
        nodes = [number for number in self._nodes if number not in silent or silent[number].until + PAUSE_MAX < now]
        return nodes if len(nodes) >= self._quorum else self._nodes

    def is_eligible(self, number: int) -> bool:
        """Its vote may be counted: it cannot have forgotten a lease that still runs."""
        server_run = self._port.server_run(number)
        if server_run is None:
            return False
        if not server_run.may_forget or not self._config.quarantine:
            return True
        return self._runtime.now() - server_run.started_at >= self._config.max_ttl

    def ineligible(self, number: int) -> HoldfastError:
        """Why a node that has answered does not count."""
        server_run = self._port.server_run(number)
        up = 0.0 if server_run is None else self._runtime.now() - server_run.started_at
        left = max(0.0, self._config.max_ttl - up)
        return BackendUnavailable(
            backend=self._port.nodes[number],
            problem=f"was started {up:.0f} s ago and may have forgotten locks: it counts again in {left:.0f} s, when "
            f"it has been up for max_ttl={self._config.max_ttl:g} s (`appendonly yes` with `appendfsync always` makes "
            "that unnecessary)",
        )

    def quorum_error(self, errors: dict[int, HoldfastError]) -> QuorumError:
        """The error for who needs a majority, with what each node said."""
        causes = {self._port.nodes[number]: error for number, error in sorted(errors.items())}
        return QuorumError(backend=self._config.url, needed=self._quorum, nodes=len(self._nodes), causes=causes)

    async def handshake(self, deadline: float) -> None:
        """Find out who the nodes are that we have not met yet: without that, no vote of theirs is asked for."""
        unknown = [number for number in self.responsive() if self._port.server_run(number) is None]
        if unknown:
            now = self._runtime.now()
            is_first = len(self._nodes) - len(unknown) < self._quorum
            # Without a majority of acquaintances nothing can be done, so they get the time that connecting may take;
            # but not all the time that there is.
            backoff = 2 * self._config.connect_timeout if is_first else self._config.node_timeout
            await self.run_calls(
                [self._hello(number) for number in unknown], now + min(backoff, 0.6 * (deadline - now))
            )

    async def run_calls(self, calls: Sequence[tuple[int, Call]], deadline: float) -> list[Reply | HoldfastError]:
        """As the port does; who does not answer is silent from now on."""
        server_runs = [self._port.server_run(number) for number, _ in calls]
        replies = await self._port.run_calls(calls, deadline=deadline)
        for index, (number, call) in enumerate(calls):
            reply = replies[index]
            if isinstance(reply, HoldfastError) and not isinstance(reply, NameConflict):
                self.mark_unresponsive(number, reply)
                continue
            if number in self._unresponsive:
                self._is_back(number)
            before = server_runs[index]
            server_run = self._port.server_run(number)
            if server_run is not before and call.script is not lua.HELLO and _run(server_run) != _run(before):
                # Another process than the one that was asked: what it was told of itself was wrong.
                replies[index] = OutcomeUnknown(backend=self._port.nodes[number], problem="was started again")
        return replies

    def mark_unresponsive(self, number: int, error: HoldfastError) -> None:
        """It has not answered."""
        now = self._runtime.now()
        with self._mutex:
            before = self._unresponsive.get(number)
            last, pause = PAUSE_MIN, PAUSE_MIN
            if before is not None:
                last, pause = before.pause, min(PAUSE_MAX, 2 * before.pause)
            elif number in self._returns:
                back_at, last = self._returns.pop(number)
                # One that answers, but not what it is there for, comes and goes: less and less often.
                pause = min(PAUSE_MAX, 2 * last) if now - back_at < PAUSE_MAX else PAUSE_MIN
            self._unresponsive[number] = _Outage(now + pause, pause, error)
            there = len(self._nodes) - len(self._unresponsive)
        if before is None:
            problem = error.problem if isinstance(error, BackendError) else str(error)
            node = self._port.nodes[number]
            logger().warning(
                "%s is silent, %d of %d nodes answer: %s",
                node,
                there,
                len(self._nodes),
                problem.removeprefix(f"{node}: "),
            )

    def schedule_release(self, number: int, ticket: Ticket, attempt: int, *, is_over: bool) -> None:
        """Have the node take back this vote, sooner or later."""
        with self._mutex:
            self._pending_releases[number, ticket.nonce] = _PendingRelease(
                ticket, attempt, is_over, self._runtime.now() + ticket.ttl
            )
        self._ensure_worker()

    async def close(self) -> None:
        self._closed = True
        self._wakeup.set()

    # ── in the background ────────────────────────────────────────────────────────────────────────────────────────

    def _ensure_worker(self) -> None:
        """See to it that somebody asks who is silent, and pays what is owed."""
        if self._is_working or self._closed:
            return
        with self._mutex:
            begins, self._is_working = not self._is_working, True
        if begins:
            try:
                self._port.start(self._work)
            except BaseException:
                self._is_working = False
                raise

    async def _work(self) -> None:
        try:
            while await self._run_once():
                pass
        finally:
            self._is_working = False  # also when it was cancelled: the next one who needs it begins it anew

    async def _run_once(self) -> bool:
        """Ask those whose time has come, then sleep; False when there is nothing left to do."""
        now = self._runtime.now()
        with self._mutex:
            self._pending_releases = {
                key: pending for key, pending in self._pending_releases.items() if pending.until > now
            }
            is_over = self._closed or not (
                self._pending_releases or (self._unresponsive and now - self._used_at < IDLE_MAX)
            )
            if is_over:
                self._is_working = False
                return False
            ready = [number for number in self._nodes if self._may_ask(number, now)]
            due = [(key, pending) for key, pending in self._pending_releases.items() if key[0] in ready][:BATCH_MAX]
            payees = {key[0] for key, _ in due}
            others = [number for number in ready if number in self._unresponsive and number not in payees]
        calls = [(key[0], self._release_call(pending)) for key, pending in due] + [
            self._hello(number) for number in others
        ]
        if calls:
            replies = await self.run_calls(calls, now + 2 * self._config.connect_timeout)
            with self._mutex:
                for (key, pending), reply in zip(due, replies, strict=False):
                    is_paid = not isinstance(reply, HoldfastError) or isinstance(reply, NameConflict)
                    if is_paid and self._pending_releases.get(key) is pending:
                        del self._pending_releases[key]
        await self._wakeup.wait(self._runtime.now() + PAUSE_MIN)
        return True

    def _release_call(self, pending: _PendingRelease) -> Call:
        keys = keys_of(self._config.prefix, pending.ticket.name)
        # It is owed because the node did not answer: a request for its vote may still arrive there.
        ending = lua.ending(is_over=pending.is_over, is_answered=False)
        return Call(lua.RELEASE, keys, (pending.ticket.nonce, pending.attempt, ending))

    def _hello(self, number: int) -> tuple[int, Call]:
        return number, Call(lua.HELLO, keys_of(self._config.prefix, "hello"), ())

    def _may_ask(self, number: int, now: float) -> bool:
        silence = self._unresponsive.get(number)
        return silence is None or silence.until <= now

    def _is_back(self, number: int) -> None:
        with self._mutex:
            silence = self._unresponsive.pop(number, None)
            if silence is not None:
                self._returns[number] = (self._runtime.now(), silence.pause)
        if silence is not None:
            logger().warning("%s answers again", self._port.nodes[number])


def _run(server_run: ServerRun | None) -> str | None:
    return None if server_run is None else server_run.run
