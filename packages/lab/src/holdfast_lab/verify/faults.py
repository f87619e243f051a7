"""The faults of a run. None needs rights on the servers; commands of the user can be added.

A fault is a function of a `Stage`, the workers and proxies of the run. It begins the fault and returns how long the
fault lasts, what it hit, and a function that ends it.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from holdfast.runtimes.system import now
from holdfast_lab.checking import history as h

from .processes import Process
from .proxies import Direction, Proxies, Proxy

COMMAND_MAX = 600.0  # seconds that a command of the user may take


class Stage(Protocol):
    """The parts of a run that faults use."""

    rng: random.Random
    ttl: float
    workers: list[Process]

    @property
    def proxies(self) -> Proxies:
        """The proxies of all workers."""

    def holder(self) -> Process:
        """A worker that has just acquired a contended lock, and holds it for longer than a fault lasts, if possible."""

    def replace(self, process: Process) -> None:
        """Start a new worker in the place of one that was killed."""

    def record(self, event: h.Event) -> None:
        """Add an event of the parent to the history."""

    def a_lock(self) -> str:
        """A contended name."""


class Active(NamedTuple):
    """A fault that has begun."""

    detail: str  # what it hit
    seconds: float
    end: Callable[[], object]


class Kind(NamedTuple):
    """One kind of fault."""

    begin: Callable[[Stage], Active]
    meaning: str
    needs: str = ""  # "network", "events" or "fork": only for adapters that have it


def _nothing() -> None:
    """The fault ends at once, so nothing has to be ended later."""


# ── processes ────────────────────────────────────────────────────────────────────────────────────────────────────


def _pause(stage: Stage) -> Active:
    process = stage.holder()
    stage.record(h.Paused(now(), process.client))
    process.stop()

    def resume() -> None:
        stage.record(h.Resumed(now(), process.client))  # before its first event
        process.resume()

    return Active(process.client, stage.ttl * stage.rng.uniform(1.3, 2.2), resume)


def _kill(stage: Stage) -> Active:
    process = stage.holder()
    process.kill()
    stage.record(h.Crashed(now(), process.client, "SIGKILL"))
    stage.replace(process)
    return Active(process.client, 0.0, _nothing)


def _fork(stage: Stage) -> Active:
    for process in stage.workers:
        process.call("fork", lock=stage.a_lock())
    return Active("all workers", 1.0, _nothing)


def _clock(stage: Stage) -> Active:
    process = stage.holder()
    offset = stage.rng.choice((-7200.0, -60.0, 60.0, 7200.0))
    process.call("clock", offset=offset)
    return Active(f"{process.client} by {offset:+g} s", stage.ttl * 1.2, lambda: process.call("clock", offset=0.0))


def _slow_subscriber(stage: Stage) -> Active:
    process = stage.holder()
    process.call("slow", seconds=0.3)
    return Active(process.client, stage.ttl * 1.5, lambda: process.call("slow", seconds=0.0))


# ── connections ──────────────────────────────────────────────────────────────────────────────────────────────────


def _links(stage: Stage) -> tuple[list[Proxy], str]:
    """The connections that a fault hits: of one worker or of all, to one server or to all."""
    rng, servers = stage.rng, stage.proxies.servers
    clients = [process.client for process in stage.workers]
    if rng.choice((True, False)):
        clients = [stage.holder().client]
    if len(servers) > 1 and rng.choice((True, False)):
        servers = [rng.choice(servers)]
    source = clients[0] if len(clients) == 1 else "all workers"
    target = f"{servers[0][0]}:{servers[0][1]}" if len(servers) == 1 else "all servers"
    return stage.proxies.chosen(clients, servers), f"{source} to {target}"


def _outage(stage: Stage) -> float:
    return stage.ttl * stage.rng.uniform(0.3, 1.8)


def _cut(stage: Stage) -> Active:
    links, detail = _links(stage)
    stage.proxies.cut(links)
    return Active(detail, 0.0, _nothing)


def _half_open(stage: Stage) -> Active:
    links, detail = _links(stage)
    stage.proxies.forget(links)
    return Active(detail, 0.0, _nothing)


def _refuse(stage: Stage) -> Active:
    links, detail = _links(stage)
    stage.proxies.refuse(links)
    return Active(detail, _outage(stage), lambda: stage.proxies.heal(links))


def _delay(stage: Stage) -> Active:
    links, detail = _links(stage)
    seconds = stage.rng.choice((0.05, 0.3, stage.ttl * 0.4, stage.ttl * 0.7))
    stage.proxies.delay(links, seconds)
    return Active(f"{detail} by {seconds:g} s", stage.ttl * 1.8, lambda: stage.proxies.heal(links))


def _one_way(direction: Direction) -> Callable[[Stage], Active]:
    def begin(stage: Stage) -> Active:
        links, detail = _links(stage)
        stage.proxies.hold(links, direction)
        return Active(detail, _outage(stage), lambda: stage.proxies.heal(links))

    return begin


FAULTS: Mapping[str, Kind] = {
    "pause": Kind(_pause, "a worker is stopped (SIGSTOP) for longer than its ttl"),
    "kill": Kind(_kill, "a worker is killed (SIGKILL) and another one is started"),
    "fork": Kind(_fork, "workers fork while they hold a lock, and the children use the inherited client", "fork"),
    "clock": Kind(_clock, "the wall clock of a worker, as Python code reads it, jumps by up to two hours"),
    "slow-subscriber": Kind(_slow_subscriber, "a subscriber to events takes 0.3 s for each event", "events"),
    "cut": Kind(_cut, "connections are reset", "network"),
    "refuse": Kind(_refuse, "connections are reset and new ones are refused", "network"),
    "delay": Kind(_delay, "requests and replies arrive late", "network"),
    "no-requests": Kind(_one_way("requests"), "requests do not arrive; replies do", "network"),
    "no-replies": Kind(_one_way("replies"), "requests arrive; replies do not", "network"),
    "half-open": Kind(_half_open, "connections pass nothing more and are not closed", "network"),
}


# ── commands of the user ─────────────────────────────────────────────────────────────────────────────────────────


class Command(NamedTuple):
    """A fault of the user: a shell command, which runs during the load or while it is stopped."""

    name: str
    line: str
    during: bool = True

    def run(self) -> str:
        """Run it to its end: "" or the reason why it failed."""
        try:
            done = subprocess.run(  # noqa: S602  (the user wrote it for the shell)
                self.line,
                shell=True,
                check=False,
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                timeout=COMMAND_MAX,
            )
        except subprocess.TimeoutExpired:
            return f"its command did not end in {COMMAND_MAX:g} s"
        if done.returncode == 0:
            return ""
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or [""]
        return f"its command ended with status {done.returncode}: {last[0][:200]}"
