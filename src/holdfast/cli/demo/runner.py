"""Run the demo: start the workers, print their events, kill a holder, print the summary."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
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
POLL_INTERVAL = 0.1  # seconds

# A store on this machine detects the death of a process at once. Over a network the lease must expire: use a short ttl.
TTL = {Scope.MACHINE: 30.0, Scope.NETWORK: 3.0}
_RED, _GREEN, _YELLOW = 31, 32, 33


def run(*, url: str | None, workers: int, seconds: float) -> int:
    """Show the demo and return the exit status."""
    with Interrupts() as interrupts, contextlib.ExitStack() as stack:
        if url is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-demo-"))
            url = "sqlite://" + quote(os.path.join(folder, "locks.db"))
        with holdfast.Client(url) as client:
            ttl = TTL.get(client.guarantees.scope)
            if ttl is None:
                raise holdfast.ConfigurationError(f"{client.url} is private to one process: the demo needs several")
            lock = f"holdfast-demo-{secrets.token_hex(4)}"
            client.inspect(lock)  # fails here if the store cannot be used
            print(
                f"holdfast demo: {workers} processes take turns on one lock (ttl {ttl:g} s)",
                f"store: {client.url}",
                "fence: a number that grows with every lease, so that a resource can reject a late holder",
                "",
                sep="\n",
            )
            demo = _Demo(client, lock, interrupts)
            demo.run(url, workers, seconds, ttl)
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
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self._running = 0  # workers whose end was not received yet
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._printed_takeover = False

    def run(self, url: str, workers: int, seconds: float, ttl: float) -> None:
        """Start the workers. At the end, close their stdin, which ends them, and kill those that do not end in time."""
        try:
            for number in range(1, workers + 1):
                keep_after = seconds * KEEP_AFTER if number == VICTIM else 1e9
                self._start(url, number, {"lock": self._lock, "ttl": ttl, "number": number, "keep_after": keep_after})
            if not self._process_events(lambda: bool(self.history.turns or self.history.errors), START_MAX):
                raise holdfast.HoldfastError(f"no worker acquired the lock within {START_MAX:g} s")
            end = system.now() + seconds
            self._process_events(
                lambda: self.history.takeover is not None and system.now() >= end, seconds + TAKEOVER_MAX
            )
        finally:
            for process in self._processes.values():
                process.stdin.close()  # type: ignore[union-attr]  # it is a pipe
            if not self._process_events(lambda: False, END_MAX, until_signal=False):
                self.history.errors.append(f"a worker did not end within {END_MAX:g} s")
            for process in self._processes.values():
                process.kill()
                process.wait()

    def _start(self, url: str, number: int, setup: dict[str, Any]) -> None:
        # -P keeps modules in the current folder from hiding others, unless this program was found there.
        isolation = [] if sys.path[0] in ("", os.getcwd()) else ["-P"]
        process = self._processes[number] = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, *isolation, "-m", "holdfast.cli.demo.worker", json.dumps(setup)],
            env={**os.environ, "HOLDFAST_URL": url},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,  # Ctrl-C reaches only this process
        )
        threading.Thread(target=self._receive, args=(number, process)).start()
        self._running += 1
        print(f"worker {number} is process {process.pid}", flush=True)

    def _receive(self, number: int, process: subprocess.Popen[str]) -> None:
        """Pass on the events of a worker. Runs on a thread of its own, to the end of the process."""
        with process:
            for line in process.stdout or ():
                self._events.put(Event(*json.loads(line)))
        is_expected = process.returncode == 0 or (self.history.killed is not None and number == VICTIM)
        error = "" if is_expected else f"ended with status {process.returncode}"
        self._events.put(Event(number, "ended", system.now(), error=error))

    def _process_events(self, is_done: Callable[[], bool], seconds: float, *, until_signal: bool = True) -> bool:
        """Receive and print events until `is_done`, a signal, or the end of all workers. Return False on timeout."""
        deadline = system.now() + seconds
        while self._running and not (is_done() or (until_signal and self._interrupts.received)):
            if system.now() >= deadline:
                return False
            with contextlib.suppress(queue.Empty):
                event = self._events.get(timeout=POLL_INTERVAL)
                self.history.add(event)
                if event.kind == "ended":
                    self._running -= 1
                if until_signal:
                    self._show(event)
        return True

    def _show(self, event: Event) -> None:
        """Print the event. A worker that is stuck with the lock is killed."""
        takeover, first = self.history.takeover, next(iter(self.history.turns), event)
        fence = f"+{event.fence - first.fence}" if event.fence > first.fence else str(event.fence)
        match event.kind:
            case _ if event.error:
                self._print(event.at, self.history.errors[-1], _RED)
            case "keeping":
                self._print(event.at, f"worker {event.worker} has finished its work, but keeps the lock", _YELLOW)
            case "stuck":
                process = self._processes[event.worker]
                self.history.add_kill(event.worker, system.now())
                process.kill()
                text = f"kill -9 {process.pid}: worker {event.worker} dies while it holds the lock"
                self._print(system.now(), text, _RED)
            case "acquired" if takeover is not None and not self._printed_takeover:
                self._printed_takeover = True
                after = f"{takeover * 1000:.1f} ms after the kill"
                self._print(event.at, f"worker {event.worker} took over {after}, fence {fence}", _GREEN)
            case "acquired":
                queued = ", ".join(str(waiter.meta["worker"]) for waiter in self._client.inspect(self._lock).waiters)
                waited = f"waited {event.at - event.requested:.3f} s" + (f"; queue: {queued}" if queued else "")
                self._print(event.at, f"worker {event.worker} acquired it, fence {fence}, {waited}")
            case _:
                pass

    def _print(self, at: float, text: str, *color: int) -> None:
        print(self._terminal.paint(f"{at - self._started:7.3f} s  {text}", *color), flush=True)
