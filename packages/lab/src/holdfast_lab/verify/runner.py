"""A run: workers under load, one fault after the other, and the evidence that the checkers judge.

start workers ── probes ── load, a fault, its recovery, the next fault … ── healed ── end workers ── free names
"""

from __future__ import annotations

import contextlib
import random
import secrets
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.guarantees import Guarantees, Scope, Wake
from holdfast.runtimes.system import now
from holdfast_lab.checking import history as h
from holdfast_lab.checking.promises import IN_ORDER

from .adapter import HOLDFAST, Adapter, AnyAdapter, load
from .faults import FAULTS, Command
from .hub import Job
from .journal import read
from .merge import Histories, merge
from .parent import HubServer
from .probes import Handovers, probe
from .processes import Process, Processes, RunFailed
from .proxies import Proxies
from .store import StoreClient

HOT, COLD = 2, 4  # names that are contended, and names that are mostly free
IDLE_MAX = 20.0  # seconds in which every call ends after the last fault
CALM = 2.0  # seconds of load without faults at the end
RECOVER_MAX = 30.0
_SETTLED = 40.0  # seconds after the run; an event that is not delivered by then counts as missing


class Plan(NamedTuple):
    """The options of a run."""

    url: str
    adapters: tuple[str, ...] = HOLDFAST
    seconds: float = 60.0
    workers: int = 4
    threads: int = 2
    tasks: int = 2
    ttl: float = 2.0
    seed: int = 0
    prefix: str = ""  # "": a random one
    only: tuple[str, ...] = ()  # the names of the faults; (): all
    commands: tuple[Command, ...] = ()


class Happened(NamedTuple):
    """A fault of the run, and how long the workers needed to recover from it; None: longer than RECOVER_MAX."""

    name: str
    detail: str
    began: float
    ended: float
    recovered: float | None


class Evidence(NamedTuple):
    """Everything that was observed."""

    plan: Plan
    guarantees: Guarantees | None
    kinds: tuple[AnyAdapter, ...]
    histories: Histories
    faults: tuple[Happened, ...]
    not_exercised: dict[str, str]  # fault -> reason
    handovers: Handovers
    connections: int
    started: float


Progress = Callable[[float, str], None]  # the seconds that have passed, and what happens now


def run(plan: Plan, progress: Progress = lambda _seconds, _text: None) -> Evidence:
    """Run the plan.

    Raises:
        ConfigurationError: the plan cannot be run with this store or adapter.
        BackendError: the store does not answer at the start.
        RunFailed: the same for the adapter of another library, or a worker died by itself.
    """
    try:
        return _run(plan, progress)
    except (HoldfastError, RunFailed):
        raise
    except Exception as error:
        raise RunFailed(f"the adapter failed with {type(error).__name__}: {error}") from error


def _run(plan: Plan, progress: Progress) -> Evidence:
    kinds = tuple(load(name) for name in plan.adapters)
    with StoreClient(plan.url, kinds[0]) as store:
        guarantees = store.guarantees()
        if guarantees is not None and guarantees.scope is Scope.PROCESS:
            raise ConfigurationError(
                "url is private to one process: verify needs a store that other processes can reach"
            )
        with (
            tempfile.TemporaryDirectory(prefix="holdfast-verify-") as folder,
            _Run(plan, kinds, store, Path(folder), progress) as session,
        ):
            return session.run()


def _no_queue(_lock: str) -> None:
    """The positions of waiters are not known."""


def _is_busy(state: dict[str, Any]) -> bool:
    return bool(state["busy"] or state["taking"])


class _Run:
    """The workers, the proxies and the schedule of one run; a `Stage` for its faults."""

    def __init__(
        self,
        plan: Plan,
        kinds: tuple[AnyAdapter, ...],
        store: StoreClient,
        folder: Path,
        progress: Progress,
    ) -> None:
        self._plan = plan
        self._kinds = kinds
        self._guarantees: Guarantees | None = None
        self._store = store
        self._folder = folder
        self._progress = progress
        self.rng = random.Random(plan.seed)  # noqa: S311  (not a secret)
        self.ttl = plan.ttl
        prefix = plan.prefix or f"holdfast-verify-{secrets.token_hex(6)}"
        self.names = [f"{prefix}/hot-{number}" for number in range(HOT)]
        self.names += [f"{prefix}/cold-{number}" for number in range(COLD)]
        self._probed = f"{prefix}/queue"
        self._hub = HubServer(folder)
        self._processes = Processes()
        self._numbers: defaultdict[int, int] = defaultdict(int)
        self._started = 0
        self._holders = 0
        self.workers: list[Process] = []
        self._events: list[h.Event] = []
        self._faults: list[Happened] = []
        self._not_exercised: dict[str, str] = {}
        self._uses_network = any(kind.uses_network(plan.url) for kind in kinds)
        self._is_clean = False

    def __enter__(self) -> Self:
        self._store.require_free([*self.names, self._probed])
        self._guarantees = self._store.guarantees()  # they depend on the server, which has answered by now
        self._hub.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._processes.__exit__(kind, error, trace)
        self._hub.__exit__(kind, error, trace)
        if not self._is_clean:
            self._progress(self._plan.seconds, "ended early: freeing the locks")
            self._store.free([*self.names, self._probed], self.ttl, within=self.ttl + 10.0)

    # ── the stage of the faults ──────────────────────────────────────────────────────────────────────────────────

    @property
    def proxies(self) -> Proxies:
        return self._hub.proxies

    def holder(self) -> Process:
        # In turn: no check between the fault and the write to the resource, or many checks until the lease is lost.
        self._holders += 1
        if self._holders % 2:
            return self._holder_of(self.a_lock(), hold=0.0, work=self.ttl / 2)
        return self._holder_of(self.a_lock(), hold=self.ttl * 3)

    def _holder_of(self, lock: str, **times: float) -> Process:
        process = self.rng.choice(self.workers)
        process.call("take", lock=lock, timeout=self.ttl * 3, **times)
        end = now() + self.ttl * 3
        while not process.call("state")["taken"] and now() < end:
            time.sleep(0.002)
        return process

    def replace(self, process: Process) -> None:
        index = self.workers.index(process)
        self.workers[index] = self._start(index)
        self.workers[index].receive()
        self.workers[index].call("go")

    def record(self, event: h.Event) -> None:
        self._events.append(event)

    def a_lock(self) -> str:
        return self.rng.choice(self.names[:HOT])

    # ── the schedule ─────────────────────────────────────────────────────────────────────────────────────────────

    def run(self) -> Evidence:
        began = now()
        self._progress(0.0, "starting workers")
        self.workers = [self._start(index) for index in range(self._plan.workers)]
        for worker in self.workers:
            worker.receive()
        handovers = self._probe()
        self._command_all("go")
        self._load(now())
        self.record(h.Healed(now()))
        self._progress(self._plan.seconds, "all faults have ended")
        time.sleep(CALM)
        self._end_workers()
        self._progress(self._plan.seconds, "checking that the locks are free")
        for event in self._store.free([*self.names, self._probed], self.ttl, within=self.ttl + 10.0):
            self.record(event)
        self._is_clean = True
        self.record(h.End(now() + _SETTLED))
        self._progress(self._plan.seconds, "judging")
        histories = merge(read(self._folder), [*self._events, *self._hub.resource.history])
        return Evidence(
            self._plan,
            self._guarantees,
            self._kinds,
            histories,
            tuple(self._faults),
            self._not_exercised,
            handovers,
            self.proxies.connections,
            began,
        )

    def _start(self, index: int) -> Process:
        number, generation = self._started, self._numbers[index]
        self._started += 1
        self._numbers[index] += 1
        plan = self._plan
        client = f"worker-{index}" + (f".{generation}" if generation else "")
        return self._processes.start(
            Job(
                client,
                number,
                plan.url,
                list(plan.adapters),
                str(self._folder / f"{number}.journal"),
                self._hub.path,
                self.names,
                HOT,
                plan.ttl,
                str(plan.seed),
                plan.threads,
                plan.tasks,
                proxied=self._uses_network,
            )
        )

    def _probe(self) -> Handovers:
        guarantees = self._guarantees
        if guarantees is None or (guarantees.order not in IN_ORDER and guarantees.wake is not Wake.PUSH):
            return Handovers()
        self._progress(0.0, "measuring hand-overs")
        # Without an order of its own, a store need not list all waiters, so no position can be awaited.
        queue = self._store.queue if guarantees.order in IN_ORDER else _no_queue
        return probe(self.workers, self._probed, queue, self.record)

    def _command_all(self, do: str) -> None:
        for worker in self.workers:
            worker.call(do)

    def _load(self, began: float) -> None:
        """One fault after the other until the time is over; every kind once, in a random order, then again."""
        end = began + self._plan.seconds - CALM
        queue: list[str | Command] = []
        known = self._possible()
        only = self._plan.only
        commands = [command for command in self._plan.commands if command.name in only or not only]
        self._sleep(0.5, began)
        while now() < end and (known or commands):
            if not queue:
                queue = [*known, *commands]
                self.rng.shuffle(queue)
            fault = queue.pop()
            if isinstance(fault, Command):
                self._run_command(fault, began)
            else:
                self._run_fault(fault, end, began)
            self._sleep(self.rng.uniform(0.1, 0.5), began)
        self._sleep(end - now(), began)
        happened = {fault.name for fault in self._faults}
        for name in (*known, *(command.name for command in commands)):
            if name not in happened:
                self._not_exercised.setdefault(name, "there was not enough time")

    def _possible(self) -> list[str]:
        """The built-in faults that can be exercised here; the others are noted with the reason."""
        only = self._plan.only
        names = [name for name in FAULTS if name in only or not only]
        has = {
            "network": (self._uses_network, "there is no network connection"),
            "events": (any(kind.reports_events for kind in self._kinds), "the adapter delivers no events"),
            "fork": (any(issubclass(kind, Adapter) for kind in self._kinds), "no adapter is for threads"),
        }
        possible = []
        for name in names:
            is_possible, reason = has.get(FAULTS[name].needs, (True, ""))
            if is_possible:
                possible.append(name)
            else:
                self._not_exercised[name] = reason
        return possible

    def _run_fault(self, name: str, end: float, began: float) -> None:
        if FAULTS[name].needs == "network" and not self.proxies.servers:
            self._not_exercised[name] = "the connections of the driver cannot be redirected to a proxy"
            return
        self._not_exercised.pop(name, None)
        started = now()
        active = FAULTS[name].begin(self)
        self.record(h.FaultStarted(started, name, active.detail))
        self._progress(now() - began, f"{name}: {active.detail}")
        try:
            time.sleep(max(0.0, min(active.seconds, end - now())))
        finally:
            active.end()
        self._command_all("drop")
        self._ended(name, active.detail, started, began)

    def _run_command(self, command: Command, began: float) -> None:
        self._progress(now() - began, f"{command.name}: {command.line}")
        if command.during:
            # Hold a lock that is not contended: the next grant of a contended one shows that workers have recovered.
            self._holder_of(self.rng.choice(self.names[HOT:]), hold=self.ttl * 3)
        else:
            self._idle()
        started = now()
        self.record(h.FaultStarted(started, command.name))
        problem = command.run()
        if not command.during:
            self._command_all("go")
        if problem:
            self._not_exercised[command.name] = problem
        self._ended(command.name, "", started, began)

    def _ended(self, name: str, detail: str, started: float, began: float) -> None:
        ended = now()
        self.record(h.FaultEnded(ended, name, detail))
        recovered = self._recovered(ended, began)
        self._faults.append(Happened(name, detail, started, ended, recovered))

    def _recovered(self, since: float, began: float) -> float | None:
        """Seconds until every worker and every contended lock had a grant again; None: more than RECOVER_MAX."""
        granted = self._hub.resource.granted
        wanted = [*(worker.client for worker in self.workers), *self.names[:HOT]]
        while now() < since + RECOVER_MAX:
            times = [granted.get(key, 0.0) for key in wanted]
            if min(times) > since:
                return max(self._first_after(key, since) for key in wanted) - since
            self._sleep(0.02, began)
        return None

    def _first_after(self, key: str, since: float) -> float:
        first = self._hub.resource.granted[key]
        for event in reversed(self._hub.resource.history):
            if event.at <= since:
                break
            if isinstance(event, h.Read) and key in (event.client, event.lock):
                first = event.at
        return first

    def _idle(self) -> list[Process]:
        """Stop the load and wait until no turn runs. Returns the workers with a call that does not end."""
        self._command_all("stop")
        end = now() + self.ttl * 3 + IDLE_MAX
        busy = list(self.workers)
        while busy and now() < end:
            busy = [worker for worker in busy if _is_busy(worker.call("state"))]
            time.sleep(0.05)
        return busy

    def _end_workers(self) -> None:
        """A worker with a call that does not end is killed: the history shows that the call has no outcome."""
        busy = self._idle()
        for worker in self.workers:
            if worker in busy:
                worker.kill()
                continue
            with contextlib.suppress(RunFailed):  # closing hangs or fails, after all calls have ended
                worker.call("end")

    def _sleep(self, seconds: float, began: float) -> None:
        end = now() + seconds
        while True:
            self._progress(now() - began, "load")
            left = end - now()
            if left <= 0:
                return
            time.sleep(min(0.1, left))
