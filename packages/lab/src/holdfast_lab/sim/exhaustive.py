"""Exhaustive search of a small world: a few clients, one lock, a round or two, and a bounded number of faults.

Random search misses bugs that need two rare events at once. Here each message has one of a few fates instead of any
delay, and actions that are due at about the same time run in every order. The choices are enumerated depth first: a run
follows a script, records the number of alternatives at each choice, and takes the first one after the end of the
script. The next run takes the next alternative at the last choice that has one left.

Equivalent orders are followed once. The behaviour of a process depends only on the messages it has received. So the
state of the server, the messages that each process received and when, the messages in flight, the time and the number
of faults left determine the future. A run that reaches a known state ends there.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar

from holdfast.errors import HoldfastError, OutcomeUnknown
from holdfast_lab.checking import Judge, Promises, Verdict, judge
from holdfast_lab.checking import history as h
from holdfast_lab.sim.choices import Choices
from holdfast_lab.sim.faults import CALM
from holdfast_lab.sim.network import Link
from holdfast_lab.sim.process import Process
from holdfast_lab.sim.recorder import NONCE, Recorder
from holdfast_lab.sim.resource import Resource
from holdfast_lab.sim.run import Plan, quiet
from holdfast_lab.sim.scenarios import ClientProcess, SmallWorld
from holdfast_lab.sim.world import Task, Trap, World

T = TypeVar("T")

TTL = 2.0
HOLDS = 0.875  # long enough for a renewal
DELAY = 1 / 1024  # of every message; a power of two, so that sums of delays are exact
LATE = 1.5 * TTL  # after the lease's deadline, but before the request's
TOO_LATE = 6.0  # after both
ENDS, REST = 60.0, 16.0
GROUP = ("lock", "other lock")  # the locks of a workload with lock_all


class Fate(Enum):
    """The fate of a request. All but DONE count as a fault."""

    DONE = "is done and answered"
    LOST = "is lost"
    UNANSWERED = "is done, and its reply lost"
    LATE = "is done late"
    TOO_LATE = "is done after its client has given up on it"
    ANSWERED_LATE = "is done, and its reply late"
    PAUSED = "is done while its process is paused past the ttl"
    CRASHED = "is done after its process has died"


FATES = tuple(Fate)


class Size(NamedTuple):
    """The size of the world, and the budget of the search."""

    clients: int = 2
    rounds: int = 1
    faults: int = 2  # in one run
    fates: Sequence[Fate] = FATES
    window: float = 0.0  # actions that are due within this many seconds of each other run in every order
    runs_max: int = 1_000_000
    seconds_max: float = 600.0


# Two faults without reordering, and one fault with reordering of close actions.
SIZES = (Size(), Size(faults=1, window=DELAY))


class ScriptedRun(NamedTuple):
    """The run of one script, and its verdict."""

    script: tuple[int, ...]
    history: list[h.Event]
    verdict: Verdict
    happened: Mapping[str, int]  # faults, by fate
    error: Exception | None  # the error that ended it early

    @property
    def failure(self) -> str:
        """The gravest broken promise, or the type of the error; empty if there is neither."""
        if self.error is not None:
            return type(self.error).__name__
        gravest = self.verdict.gravest
        return "" if gravest is None else gravest.checker


class Search(NamedTuple):
    """The result of an exhaustive search."""

    runs: int
    states: int
    pruned: int  # runs that ended in a known state
    depth: int  # choices in the longest run
    is_complete: bool
    failures: Sequence[ScriptedRun]  # one for each broken promise


Progress = Callable[[int, int], bool]  # called with runs and states; returns whether to continue


def search_all(plan: Plan, size: Size | None = None, *, progress: Progress | None = None) -> Search:
    """Follow every script, or as many as the budget allows."""
    return _DepthFirstSearch(plan, size or Size(), progress).result()


def replay(plan: Plan, size: Size, script: Sequence[int]) -> ScriptedRun:
    """Run one script to its end."""
    with quiet():
        world = _World(plan, size, _Script(script))
        world.run()
    history = world.recorder.history
    return ScriptedRun(tuple(script), history, judge(history, world.promises()), world.recorder.happened, world.error)


class _DepthFirstSearch:
    """Enumerates scripts depth first."""

    def __init__(self, plan: Plan, size: Size, progress: Progress | None) -> None:
        self._plan = plan
        self._size = size
        self._progress = progress
        self._seen: set[bytes] = set()
        self._failures: dict[str, ScriptedRun] = {}
        self._runs = self._pruned = self._depth = 0

    def result(self) -> Search:
        ends = time.monotonic() + self._size.seconds_max
        script: list[int] | None = []
        while script is not None and self._runs < self._size.runs_max and time.monotonic() < ends:
            with quiet():
                script = _next(self._run(script))
            if self._progress is not None and not self._progress(self._runs, len(self._seen)):
                break
        return Search(
            runs=self._runs,
            states=len(self._seen),
            pruned=self._pruned,
            depth=self._depth,
            is_complete=script is None,
            failures=tuple(self._failures.values()),
        )

    def _run(self, prefix: Sequence[int]) -> _Script:
        """Follow the prefix, then the first alternatives, to the end or to a known state."""
        script = _Script(prefix, self._seen)
        world = _World(self._plan, self._size, script)
        world.run()
        self._runs += 1
        self._pruned += script.was_pruned
        self._depth = max(self._depth, len(script.decisions))
        if world.is_broken():
            failing = replay(self._plan, self._size, script.decisions)
            self._failures.setdefault(failing.failure, failing)
        return script


def _next(script: _Script) -> list[int] | None:
    """The next script: the next alternative at the last choice that has one left."""
    for index in range(len(script.decisions) - 1, -1, -1):
        if script.decisions[index] + 1 < script.counts[index]:
            return [*script.decisions[:index], script.decisions[index] + 1]
    return None


class _Pruned(Exception):
    """The run reached a known state."""


class _Script(Choices):
    """Takes the given choices, then the first ones, and records the number of alternatives of each."""

    def __init__(self, given: Sequence[int], seen: set[bytes] | None = None) -> None:
        super().__init__(decisions=given)
        self.counts: list[int] = []
        self.was_pruned = False
        self._length = len(given)
        self._seen = seen  # None: do not prune

    def choose(self, count: int, state: Callable[[], bytes]) -> int:
        """Choose one of several; raise _Pruned in a state whose alternatives are all followed already."""
        if count == 1:
            return 0
        if self._seen is not None and len(self.decisions) >= self._length:
            key = state()
            if key in self._seen:
                self.was_pruned = True
                raise _Pruned
            self._seen.add(key)
        self.counts.append(count)
        return self.below(count)

    def chance(self, probability: float) -> bool:
        return False  # no random faults

    def between(self, low: float, high: float) -> float:
        return low


# ── the world ────────────────────────────────────────────────────────────────────────────────────────────────────────


# A due action: its time, order, function and arguments.
_Entry = tuple[float, int, int, Callable[..., None], tuple[Any, ...]]


class _ScriptedWorld(World):
    """Runs actions that are due at about the same time in the order of the script."""

    choices: _Script

    def __init__(self, choices: Choices) -> None:
        super().__init__(choices)
        self.window = 0.0
        self.state: Callable[[str], bytes] = lambda _: b""
        self._moment = 0.0
        self._resumed: set[Process] = set()  # with a task that resumed at this time
        self.received: dict[str, bytes] = {}  # by process: a hash of all messages it received, and when

    def soon(self, action: Callable[..., None], *arguments: Any) -> None:
        self.at(self.now, action, *arguments)

    def run(self, until: float) -> None:
        due = self._due
        while due and due[0][0] <= until:
            self._drop_stale()
            window = sorted(entry for entry in due if entry[0] <= min(due[0][0] + self.window, until))
            if not window:
                continue
            if not self.window:
                window = self._reduced(window)
            chosen = window[self.choices.choose(len(window), lambda: self.state("order"))]
            due.remove(chosen)
            heapq.heapify(due)
            when, _, _, action, arguments = chosen
            self.now = max(self.now, when)
            self.steps += 1
            process = _process_of(action)
            if process is not None:
                self._resumed.add(process)
                self.receive(process, _described(action, arguments))
            action(*arguments)
        self.now = max(self.now, until)

    def _reduced(self, entries: list[_Entry]) -> list[_Entry]:
        """Drop orders that are equivalent for other processes.

        Of the tasks of one process that resume at the same time, as after a pause, each may be the first; the others
        follow in their order of arrival. All orders of four tasks would be too many.
        """
        if entries[0][0] != self._moment:
            self._moment = entries[0][0]
            self._resumed.clear()
        kept: list[_Entry] = []
        for entry in entries:
            process = _process_of(entry[3])
            is_next = process is None or all(_process_of(other[3]) is not process for other in kept)
            if is_next or process not in self._resumed:
                kept.append(entry)
        return kept

    def receive(self, process: Process, message: str) -> None:
        """Add to the messages that this process has received."""
        before = self.received.get(process.name, b"")
        self.received[process.name] = blake2b(before + f"{self.now!r} {message}".encode(), digest_size=16).digest()

    def in_flight(self) -> list[str]:
        return sorted(f"{when!r} {_described(action, arguments)}" for when, _, _, action, arguments in self._due)

    def _drop_stale(self) -> None:
        """Drop actions without effect, so that they cause no choices."""
        kept = [entry for entry in self._due if not _is_stale(entry[3], entry[4])]
        if len(kept) < len(self._due):
            self._due[:] = kept
            heapq.heapify(self._due)


class _NoncePerClientRecorder(Recorder):
    """Numbers nonces per client, so that a nonce does not depend on other clients."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._drawn: dict[str, int] = {}

    def new_nonce(self, client: str, call: int) -> str:
        number = self._drawn[client] = self._drawn.get(client, 0) + 1
        nonce = f"{client}{number}".rjust(NONCE, "0")
        self._owner[nonce] = (client, call)
        return nonce


class _World(SmallWorld):
    """All clients start at once; the fate of each message is a choice while faults are left."""

    world_type = _ScriptedWorld
    recorder_type = _NoncePerClientRecorder
    world: _ScriptedWorld

    def __init__(self, plan: Plan, size: Size, script: _Script) -> None:
        super().__init__(plan, script)
        self.script = script
        self.faults_left = size.faults
        self.error: Exception | None = None
        self._size = size
        self._resource = Resource(self.world, self.recorder)
        self._working: set[str] = set()
        self.world.state, self.world.window = self._state, size.window

    def link(self, process: Process) -> Link:
        return _ScriptedLink(process, self)

    def run(self) -> None:
        """Run to the end, or to a known state."""
        try:
            for name in "abcdefgh"[: self._size.clients]:
                self._working.add(name)
                member = self.add(name)
                member.start(self._work(member))
            while self._working and self.world.now < ENDS:
                self.world.run(self.world.now + 1.0)
            self.recorder.add(h.Healed(self.world.now))
            self.faults_left = 0
            self.world.run(self.world.now + REST)
            self.recorder.add_leftovers(self.server.live())
            self.recorder.add(h.End(self.world.now))
        except _Pruned:
            pass
        except Exception as raised:  # no error is expected, so any error is a finding
            self.error = raised
        finally:
            self.end()

    def is_broken(self) -> bool:
        """Whether a promise is broken. Open calls of a pruned run are checked in the run that had this state first."""
        if self.error is not None:
            return True
        judging = Judge(self.promises())
        for event in self.recorder.history:
            judging.feed(event)
        return judging.broken > 0 if self.script.was_pruned else not judging.verdict().ok

    def promises(self) -> Promises:
        bound = TTL + 12.0
        return Promises.of(
            self.server.guarantees,
            ttl=TTL,
            idle_max=bound,
            leftover_max=bound,
            late_max=3.0,
            answer_max=12.0,
            wait_max=REST - 1.0,
            report_max=0.2,
        )

    def draw_fate(self, member: ClientProcess, task: Task) -> Fate:
        """Choose the fate of the request that this task sends now, and apply it to its process."""
        if not self.faults_left:
            return Fate.DONE
        fates = self._size.fates
        fate = fates[self.script.choose(len(fates), lambda: self._state(task.name))]
        if fate is not Fate.DONE:
            self.faults_left -= 1
            self.recorder.happened[fate.name.lower()] += 1
        if fate is Fate.PAUSED:
            self._pause(member.process)
        elif fate is Fate.CRASHED:
            self._crash(member)
        return fate

    def _state(self, choice: str) -> bytes:
        """A hash of everything that the future depends on at this choice."""
        world = self.world
        parts = (
            choice,
            world.now,
            self.faults_left,
            self.server.state(),
            self._resource.state(),
            sorted(world.received.items()),
            [(name, member.process.is_paused, member.process.is_dead) for name, member in self.members.items()],
            world.in_flight(),
        )
        return blake2b(repr(parts).encode(), digest_size=16).digest()

    def _pause(self, process: Process) -> None:
        if not process.is_paused:
            process.pause()
            self.recorder.add(h.Paused(self.world.now, process.name))
            self.world.at(self.world.now + LATE, self._resume, process)

    def _resume(self, process: Process) -> None:
        if process.is_paused:
            self.recorder.add(h.Resumed(self.world.now, process.name))
            process.resume()

    def _crash(self, member: ClientProcess) -> None:
        self.recorder.add(h.Crashed(self.world.now, member.process.name))
        member.process.crash()
        member.client.engine.abandon("its process has crashed")
        self.server.process_died(member.process)
        self._working.discard(member.process.name)

    async def _work(self, member: ClientProcess) -> None:
        for _ in range(self._size.rounds):
            try:
                await self._round(member)
            except HoldfastError:
                continue  # it is in the history
        self._working.discard(member.process.name)

    async def _round(self, member: ClientProcess) -> None:
        if "lock_all" in self.plan.workload.primitives:
            await self._round_with_group(member)
            return
        client, process = member.client, member.process
        lease = await client.acquire(member.lock(TTL), None)
        if lease is None:
            return
        try:
            value = self._resource.read(process, lease)
            self.world.receive(process, f"read {value}")
            await client.runtime.sleep(HOLDS)
            if client.check(lease) and value is not None:
                self._resource.write(process, lease, value + 1, value)
        finally:
            await client.release(lease)

    async def _round_with_group(self, member: ClientProcess) -> None:
        client, process = member.client, member.process
        names = GROUP if process.name == "a" else GROUP[::-1]  # in different orders
        locks = [client.lock(name, options={"ttl": TTL}) for name in names]
        group = await client.acquire_all(locks, None)
        if group is None:
            return
        try:
            values = [(lease, self._resource.read(process, lease)) for lease in group.leases]
            self.world.receive(process, f"read {[value for _, value in values]}")
            await client.runtime.sleep(HOLDS)
            if client.check_all(group):
                for lease, value in values:
                    if value is not None:
                        self._resource.write(process, lease, value + 1, value)
        finally:
            await client.release_all(group)


class _ScriptedLink(Link):
    """Every request has one of the fates; notifications always arrive."""

    def __init__(self, process: Process, small_world: _World) -> None:
        super().__init__(process, small_world.server, CALM)
        self.small_world = small_world

    async def request(self, step: Callable[[], T], deadline: float) -> T:
        answer: T = await _Request(self, step, self.process.true_time(deadline))
        return answer

    def delay(self) -> float:
        return DELAY


class _Request(Trap):
    """One request with its fate."""

    __slots__ = ("_deadline", "_fate", "_link", "_step", "task", "turn")

    def __init__(self, link: _ScriptedLink, step: Callable[[], Any], deadline: float) -> None:
        self._link = link
        self._step = step
        self._deadline = deadline

    def begin(self, task: Task, turn: int) -> None:
        self.task, self.turn = task, turn
        link, world = self._link, task.process.world
        small_world = link.small_world
        unknown = OutcomeUnknown(backend="sim", problem="no answer in time")
        world.at(max(world.now, self._deadline), task.resume, turn, None, unknown)
        self._fate = small_world.draw_fate(small_world.members[task.process.name], task)
        if self._fate is not Fate.LOST:
            world.at(link.arrival() + _DELAYS.get(self._fate, 0.0), self.arrive)

    def arrive(self) -> None:
        link, world = self._link, self.task.process.world
        value = error = None
        try:
            value = link.server.execute(self._step)
        except Exception as raised:  # an error is an answer too
            error = raised
        if self._fate is not Fate.UNANSWERED:
            late = LATE if self._fate is Fate.ANSWERED_LATE else 0.0
            world.at(world.now + DELAY + late, self.task.resume, self.turn, value, error)


_DELAYS = {Fate.LATE: LATE, Fate.TOO_LATE: TOO_LATE}


# ── descriptions of pending actions, equal for equivalent runs ───────────────────────────────────────────────────────


def _process_of(action: Callable[..., None]) -> Process | None:
    """The process that the action concerns."""
    owner = getattr(action, "__self__", None)
    return owner.process if isinstance(owner, Task) else owner if isinstance(owner, Process) else None


def _is_stale(action: Callable[..., None], arguments: tuple[Any, ...]) -> bool:
    """Whether the action has no effect."""
    process = _process_of(action)
    if process is None:
        return False
    owner = action.__self__  # type: ignore[attr-defined]  # it has a process, so it is a method
    return process.is_dead or (isinstance(owner, Task) and owner.has_ended(arguments[0]))


def _described(action: object, arguments: tuple[Any, ...]) -> str:
    return f"{_name(action)}({', '.join(map(_name, arguments))})"


def _name(value: object) -> str:
    """A name that does not depend on memory addresses."""
    owner = getattr(value, "__self__", None)
    match value:
        case Process() | Task():
            return value.name
        case _Request():
            return f"{value.task.name}:{value.turn}"
        case BaseException():
            return type(value).__name__
        case _ if callable(value):
            owner = _name(owner) if isinstance(owner, (Process, Task, _Request)) else ""
            return f"{owner}.{getattr(value, '__qualname__', '')}"
        case _:
            return repr(value)
