"""Run the demo: start the workers, print their events, kill a holder, print the summary."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import holdfast
from holdfast.cli import statuses
from holdfast.cli.demo.history import Event, History
from holdfast.cli.interrupts import Interrupts
from holdfast.cli.terminal import Terminal
from holdfast.guarantees import Scope
from holdfast.runtimes import system

START_MAX = 15.0  # seconds until the first turn
END_MAX = 3.0  # seconds that the workers may take to end
TAKEOVER_MAX = 8.0  # seconds that the kill and the takeover may take after the end of the turns
VICTIM = 1  # the worker that is killed
KEEP_AFTER = 0.4  # part of the time after which the victim keeps the lock
KEEP_FOR = 0.6  # seconds that it keeps the lock before it is killed
POLL_INTERVAL = 0.1  # seconds

# A store on this machine detects the death of a process at once. Over a network the lease must expire: use a short ttl.
TTL = {Scope.MACHINE: 30.0, Scope.NETWORK: 3.0}
_RED, _GREEN, _YELLOW = 31, 32, 33


def run(*, url: str | None, workers: int, seconds: float) -> int:
    """Show the demo and return the exit status."""
    with Interrupts() as interrupts:
        with _store(url) as store, holdfast.Client(store) as client:
            ttl = TTL.get(client.guarantees.scope)
            if ttl is None:
                raise holdfast.ConfigurationError(f"{client.url} is private to one process: the demo needs several")
            lock = f"holdfast-demo-{secrets.token_hex(4)}"
            client.inspect(lock)  # fails here if the store cannot be used
            print(f"holdfast demo: {workers} processes take turns on one lock (ttl {ttl:g} s)")
            print(f"store: {client.url}")
            print("fence: a number that grows with every lease, so that a resource can reject a late holder\n")
            demo = _Demo(client, lock, interrupts)
            with demo.workers(workers, {"url": store, "lock": lock, "ttl": ttl, "seconds": seconds}):
                demo.run(seconds)
        if interrupts.received is not None:
            print(f"stopped by {interrupts.received.name}; all workers have ended")
            return interrupts.status
        print("", *demo.history.summary(ttl), sep="\n")
        return statuses.NOT_DONE if demo.history.problems() else statuses.DONE


class _Demo:
    def __init__(self, client: holdfast.Client, lock: str, interrupts: Interrupts) -> None:
        self.history = History()
        self._client = client
        self._lock = lock
        self._interrupts = interrupts
        self._started = system.now()
        self._terminal = Terminal.of(sys.stdout)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._selector = selectors.DefaultSelector()
        self._kill_at: float | None = None
        self._printed_takeover = False

    @contextlib.contextmanager
    def workers(self, count: int, setup: dict[str, Any]) -> Iterator[None]:
        """Start the workers. At the end, close their stdin, which ends them, and kill those that do not end in time."""
        try:
            for number in range(1, count + 1):
                keep_after = setup["seconds"] * KEEP_AFTER if number == VICTIM else 1e9
                self._start(number, {"number": number, "keep_after": keep_after, **setup})
            yield
        finally:
            for process in self._processes.values():
                process.stdin.close()  # type: ignore[union-attr]  # it is a pipe
            if not self._process_events(self._all_ended, END_MAX, until_signal=False):
                self.history.errors.append(f"a worker did not end within {END_MAX:g} s")
            for process in self._processes.values():
                process.kill()
                process.wait()
                process.stdout.close()  # type: ignore[union-attr]  # it is a pipe

    def run(self, seconds: float) -> None:
        if not self._process_events(lambda: bool(self.history.turns or self.history.errors), START_MAX):
            raise holdfast.HoldfastError(f"no worker acquired the lock within {START_MAX:g} s")
        end = system.now() + seconds
        self._process_events(lambda: self.history.takeover is not None and system.now() >= end, seconds + TAKEOVER_MAX)

    def _start(self, number: int, setup: dict[str, Any]) -> None:
        # -P keeps modules in the current folder from hiding others, unless this program was found there.
        isolation = [] if sys.path[0] in ("", os.getcwd()) else ["-P"]
        process = self._processes[number] = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, *isolation, "-m", "holdfast.cli.demo.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            process_group=0,  # Ctrl-C reaches only this process
        )
        self._selector.register(process.stdout, selectors.EVENT_READ, number)  # type: ignore[arg-type]  # it is a pipe
        process.stdin.write(json.dumps(setup).encode() + b"\n")  # type: ignore[union-attr]  # it is a pipe
        print(f"worker {number} is process {process.pid}", flush=True)

    def _all_ended(self) -> bool:
        return not self._selector.get_map()

    def _process_events(self, is_done: Callable[[], bool], seconds: float, *, until_signal: bool = True) -> bool:
        """Receive and print events until `is_done`, a signal, or the end of all workers. Return False on timeout."""
        deadline = system.now() + seconds
        while not (is_done() or self._all_ended() or (until_signal and self._interrupts.received)):
            if system.now() >= deadline:
                return False
            for event in self._receive():
                self.history.add(event)
                if until_signal:
                    self._print(event)
            if until_signal and self._kill_at is not None and system.now() >= self._kill_at:
                self._kill_at = None
                self._kill()
        return True

    def _receive(self) -> list[Event]:
        """Return new events in the order of their times."""
        events = []
        for key, _ in self._selector.select(POLL_INTERVAL):
            lines = os.read(key.fd, 65536).splitlines()  # workers write whole lines
            events += [Event(*json.loads(line)) for line in lines]
            if not lines:
                self._selector.unregister(key.fileobj)
                status = self._processes[key.data].wait()
                is_expected = status == 0 or (self.history.killed is not None and key.data == VICTIM)
                error = "" if is_expected else f"ended with status {status}"
                events.append(Event(key.data, "ended", system.now(), error=error))
        return sorted(events, key=lambda event: event.at)

    def _kill(self) -> None:
        self.history.add_kill(VICTIM, system.now())
        self._processes[VICTIM].kill()
        pid = self._processes[VICTIM].pid
        self._print_line(system.now(), f"kill -9 {pid}: worker {VICTIM} dies while it holds the lock", _RED)

    def _print(self, event: Event) -> None:
        takeover = self.history.takeover
        growth = event.fence - self.history.turns[0].fence if self.history.turns else 0
        fence = f"+{growth}" if growth else str(event.fence)
        if event.error:
            self._print_line(event.at, self.history.errors[-1], _RED)
        elif event.kind == "keeping":
            self._kill_at = event.at + KEEP_FOR
            self._print_line(event.at, f"worker {event.worker} has finished its work, but keeps the lock", _YELLOW)
        elif event.kind == "acquired" and takeover is not None and not self._printed_takeover:
            self._printed_takeover = True
            after = f"{takeover * 1000:.1f} ms after the kill"
            self._print_line(event.at, f"worker {event.worker} took over {after}, fence {fence}", _GREEN)
        elif event.kind == "acquired":
            queue = ", ".join(str(waiter.meta["worker"]) for waiter in self._client.inspect(self._lock).waiters)
            waited = f"waited {event.at - event.requested:.3f} s" + (f"; queue: {queue}" if queue else "")
            self._print_line(event.at, f"worker {event.worker} acquired it, fence {fence}, {waited}")

    def _print_line(self, at: float, text: str, color: int = 0) -> None:
        line = f"{at - self._started:7.3f} s  {text}"
        print(self._terminal.paint(line, color) if color else line, flush=True)


@contextlib.contextmanager
def _store(url: str | None) -> Iterator[str]:
    if url is not None:
        yield url
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
        yield "sqlite://" + quote(os.path.join(folder, "locks.db"))
