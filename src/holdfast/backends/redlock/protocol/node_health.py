"""Node health: which nodes respond, which of them may vote, and the releases that are pending for the others.

An unresponsive node would make every call wait for its time limit. So only the first call waits. After that the node is
left out, unless there is no majority without it, and a background worker checks it, with growing pauses. The worker
also sends pending releases of votes, until the node responds or the vote has expired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from holdfast.backends.redis.port import Call, Reply
from holdfast.backends.redis.protocol.keys import keys_of
from holdfast.backends.redlock import lua
from holdfast.core.events import logger
from holdfast.errors import BackendError, BackendUnavailable, HoldfastError, NameConflict, OutcomeUnknown, QuorumError

if TYPE_CHECKING:
    from holdfast.backends.redlock.config import RedlockConfig
    from holdfast.backends.redlock.port import RedlockPort, ServerRun
    from holdfast.core.ports import Runtime
    from holdfast.core.tickets import Claim

PAUSE_MIN, PAUSE_MAX = 0.5, 10.0  # seconds before an unresponsive node is checked again
IDLE_MAX = 30.0  # seconds without a call of this client after which the checks stop
BATCH_MAX = 200  # pending releases that are sent together


class _Outage(NamedTuple):
    until: float  # time of the next check
    pause: float
    error: HoldfastError


class _PendingRelease(NamedTuple):
    call: Call
    until: float  # when the vote expires by itself


class NodeHealth:
    """The state of all nodes, as one client sees it."""

    def __init__(self, config: RedlockConfig, port: RedlockPort, runtime: Runtime) -> None:
        self._config = config
        self._port = port
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._nodes = list(range(len(port.nodes)))
        self._quorum = len(port.nodes) // 2 + 1
        self._unresponsive: dict[int, _Outage] = {}
        self._returns: dict[int, tuple[float, float]] = {}  # time of the return, and the pause before it
        self._pending_releases: dict[tuple[int, str], _PendingRelease] = {}
        self._used_at = 0.0
        self._is_working = False
        self._closed = False
        self._wakeup = runtime.event()

    @property
    def unresponsive(self) -> dict[int, HoldfastError]:
        """The nodes that did not reply to the last request, and the errors."""
        return {number: outage.error for number, outage in dict(self._unresponsive).items()}

    def responsive(self) -> list[int]:
        """The nodes to send requests to."""
        if not self._unresponsive:
            return self._nodes
        now = self._used_at = self._runtime.now()
        self._ensure_worker()
        outages = dict(self._unresponsive)
        # If the check of a node is long overdue, no worker runs, so the node gets a request from this call.
        nodes = [number for number in self._nodes if number not in outages or outages[number].until + PAUSE_MAX < now]
        return nodes if len(nodes) >= self._quorum else self._nodes

    def is_eligible(self, number: int) -> bool:
        """Whether its vote counts: it cannot have forgotten a lease that still runs."""
        server_run = self._port.server_run(number)
        if server_run is None:
            return False
        if not server_run.may_forget or not self._config.quarantine:
            return True
        return self._runtime.now() - server_run.started_at >= self._config.max_ttl

    def ineligible(self, number: int) -> HoldfastError:
        """The error for a node that replied and is not eligible."""
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
        """The error for a missing majority, with the error of each node."""
        causes = {self._port.nodes[number]: error for number, error in sorted(errors.items())}
        return QuorumError(backend=self._config.redis.url, needed=self._quorum, nodes=len(self._nodes), causes=causes)

    async def handshake(self, deadline: float) -> None:
        """Connect to nodes without a handshake: no vote is requested from a node before that."""
        unknown = [number for number in self.responsive() if self._port.server_run(number) is None]
        if unknown:
            now = self._runtime.now()
            is_first = len(self._nodes) - len(unknown) < self._quorum
            # Without a majority of known nodes the call cannot succeed, so they get the time that connecting may take,
            # but not all of the caller's time.
            seconds = 2 * self._config.redis.connect_timeout if is_first else self._config.node_timeout
            await self.run_calls(
                [self._hello(number) for number in unknown], now + min(seconds, 0.6 * (deadline - now))
            )

    async def run_calls(self, calls: Sequence[tuple[int, Call]], deadline: float) -> list[Reply | HoldfastError]:
        """As the port's. Nodes that do not reply are unresponsive from now on."""
        server_runs = [self._port.server_run(number) for number, _ in calls]
        replies = await self._port.run_calls(calls, deadline=deadline)
        for index, (number, call) in enumerate(calls):
            reply = replies[index]
            if isinstance(reply, HoldfastError) and not isinstance(reply, NameConflict):
                self.mark_unresponsive(number, reply)
                continue
            if number in self._unresponsive:
                self._mark_responsive(number)
            before = server_runs[index]
            server_run = self._port.server_run(number)
            if server_run is not before and call.script is not lua.HELLO and _run_id(server_run) != _run_id(before):
                # The node was restarted between request and reply, so arguments that depend on its run were wrong.
                replies[index] = OutcomeUnknown(backend=self._port.nodes[number], problem="was started again")
        return replies

    async def run_each(
        self, requests: Sequence[Mapping[int, Call]], deadline: float
    ) -> list[dict[int, Reply | HoldfastError]]:
        """The same for several requests, each with a call for each of its nodes. Returns the replies by node."""
        calls = [call for request in requests for call in request.items()]
        replies = iter(await self.run_calls(calls, deadline) if calls else ())
        return [{number: next(replies) for number in request} for request in requests]

    def errors_in(self, replied: Mapping[int, Reply | HoldfastError]) -> dict[int, HoldfastError]:
        """The errors of the nodes whose replies do not count."""
        errors: dict[int, HoldfastError] = {}
        for number, reply in replied.items():
            if isinstance(reply, HoldfastError):
                errors[number] = reply
            elif not self.is_eligible(number):
                errors[number] = self.ineligible(number)
        return errors

    def mark_unresponsive(self, number: int, error: HoldfastError) -> None:
        """The node has not replied."""
        now = self._runtime.now()
        with self._mutex:
            before = self._unresponsive.get(number)
            pause = PAUSE_MIN
            if before is not None:
                pause = min(PAUSE_MAX, 2 * before.pause)
            elif number in self._returns:
                back_at, last = self._returns.pop(number)
                # A node that replies to checks and not to requests is used again less and less often.
                pause = min(PAUSE_MAX, 2 * last) if now - back_at < PAUSE_MAX else PAUSE_MIN
            self._unresponsive[number] = _Outage(now + pause, pause, error)
            responsive = len(self._nodes) - len(self._unresponsive)
        if before is None:
            problem = error.problem if isinstance(error, BackendError) else str(error)
            node = self._port.nodes[number]
            logger().warning(
                "%s is silent, %d of %d nodes answer: %s",
                node,
                responsive,
                len(self._nodes),
                problem.removeprefix(f"{node}: "),
            )

    def schedule_release(self, number: int, claim: Claim, attempt: int, *, is_over: bool, until: float) -> None:
        """Release this vote on the node in the background, unless it expires before, at `until`."""
        # The node did not reply, so a request for its vote may still arrive there.
        ending = lua.ending(is_over=is_over, is_answered=False)
        call = Call(lua.RELEASE, keys_of(self._config.redis.prefix, claim.name), (claim.nonce, attempt, ending))
        with self._mutex:
            self._pending_releases[number, claim.nonce] = _PendingRelease(call, until)
        self._ensure_worker()

    async def close(self) -> None:
        self._closed = True
        self._wakeup.set()

    # ── in the background ────────────────────────────────────────────────────────────────────────────────────────

    def _ensure_worker(self) -> None:
        """Start the background worker unless it runs."""
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
            self._is_working = False  # also after a cancellation: the next call starts it again

    async def _run_once(self) -> bool:
        """Check the nodes that are due and send pending releases, then sleep. False if nothing is left to do."""
        now = self._runtime.now()
        with self._mutex:
            self._pending_releases = {
                key: pending for key, pending in self._pending_releases.items() if pending.until > now
            }
            is_checked = self._unresponsive and now - self._used_at < IDLE_MAX
            if self._closed or not (self._pending_releases or is_checked):
                self._is_working = False
                return False
            paused = {number for number, outage in self._unresponsive.items() if outage.until > now}
            due = [(key, pending) for key, pending in self._pending_releases.items() if key[0] not in paused]
            del due[BATCH_MAX:]
            others = sorted(self._unresponsive.keys() - paused - {key[0] for key, _ in due})
        calls = [(key[0], pending.call) for key, pending in due] + [self._hello(number) for number in others]
        if calls:
            replies = await self.run_calls(calls, now + 2 * self._config.redis.connect_timeout)
            with self._mutex:
                for (key, pending), reply in zip(due, replies, strict=False):
                    is_done = not isinstance(reply, HoldfastError) or isinstance(reply, NameConflict)
                    if is_done and self._pending_releases.get(key) is pending:
                        del self._pending_releases[key]
        await self._wakeup.wait(self._runtime.now() + PAUSE_MIN)
        return True

    def _hello(self, number: int) -> tuple[int, Call]:
        return number, Call(lua.HELLO, keys_of(self._config.redis.prefix, "hello"), ())

    def _mark_responsive(self, number: int) -> None:
        with self._mutex:
            outage = self._unresponsive.pop(number, None)
            if outage is not None:
                self._returns[number] = (self._runtime.now(), outage.pause)
        if outage is not None:
            logger().warning("%s answers again", self._port.nodes[number])


def _run_id(server_run: ServerRun | None) -> str | None:
    return None if server_run is None else server_run.run_id
