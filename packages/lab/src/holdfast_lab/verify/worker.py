"""A worker process: threads and tasks that contend for the locks of a run, until its parent ends it.

The first line of its stdin is a `Job` as JSON; a URL in its arguments would show a password to other users. The
other lines are commands, and it answers each with a line:

    go, stop      begin turns; begin no more turns
    state         change nothing, only answer
    take          acquire one lock on a thread of its own, and hold it until `drop` or for some seconds
    drop          release the lock of `take`
    fork          fork while a lease is held; the child uses the inherited adapter for one turn
    clock, slow   step the wall clock; let subscribers take this long for each event
    end           end all turns, close the adapters and exit

The answer has the number of turns that run (`busy`), whether `take` still runs (`taking`), its ticket, and whether it
holds the lock (`taken`).
It ends when stdin is closed or its parent dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import logging
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from typing import Any

from holdfast.runtimes.system import now
from holdfast_lab.verify.adapter import Adapter, AnyAdapter, AsyncAdapter, load
from holdfast_lab.verify.hub import Hub, Job
from holdfast_lab.verify.interpose import Redirection, WallClock
from holdfast_lab.verify.journal import Journal
from holdfast_lab.verify.turns import Choices, Inline, Player, Turn, run_inline, sleep_inline

_PR_SET_PDEATHSIG = 1
_CHILD_MAX = 20.0  # seconds that a forked child may take
_FORK_HOLD = 0.2


class Worker:
    """The threads and tasks of this process."""

    def __init__(self, job: Job, hub: Hub, clock: WallClock) -> None:
        self._job = job
        self._hub = hub
        self._clock = clock
        self._journal = Journal(job.journal, job.client, job.number)
        self._go = threading.Event()
        self._ended = False
        self._busy = 0
        self._mutex = threading.Lock()
        self._slow = 0.0
        self._dropped = threading.Event()
        self._taker: Player | None = None  # of `take`
        self._is_taking = False
        self._threads: list[threading.Thread] = []
        kinds = [load(name) for name in job.adapters]
        self._blocking = [kind for kind in kinds if issubclass(kind, Adapter)]
        self._async = [kind for kind in kinds if issubclass(kind, AsyncAdapter)]
        self._adapters: list[Adapter] = [self._prepared(kind) for kind in self._blocking]

    def start(self) -> None:
        """Start all threads; each waits for `go`."""
        for adapter in self._adapters:
            for number in range(self._job.threads):
                self._spawn(self._play_in_thread, adapter, f"thread-{number}")
        for kind in self._async:
            self._spawn(lambda kind: asyncio.run(self._play_in_loop(kind)), kind)

    def command(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Execute one command and return its answer."""
        match do:
            case "go":
                self._go.set()
            case "stop":
                self._go.clear()
            case "take":
                self._dropped.clear()
                self._is_taking = True
                self._spawn(self._take, arguments)
            case "drop":
                self._dropped.set()
            case "fork":
                self._spawn(self._fork, arguments["lock"])
            case "clock":
                self._clock.offset = arguments["offset"]
            case "slow":
                self._slow = arguments["seconds"]
            case "end":
                self._end()
            case _:
                pass
        taker = self._taker
        taken = {} if taker is None else {"ticket": taker.ticket, "taken": taker.is_holding}
        return {"busy": self._busy, "taking": self._is_taking, "ticket": 0, "taken": False, **taken}

    def _end(self) -> None:
        self._ended = True
        self._dropped.set()
        self._go.set()
        for thread in self._threads:
            thread.join()
        for adapter in self._adapters:
            adapter.close()

    def _spawn(self, function: Any, *arguments: Any) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _prepared(self, kind: AnyAdapter) -> Any:
        adapter = kind(self._job.url)
        adapter.on_lost = lambda lock, fence: self._journal.write("lost", lock=lock, fence=fence)
        adapter.on_event = self._on_event
        return adapter

    def _on_event(self, attempt: int, lock: str, kind: str, outcome: str) -> None:
        self._journal.write("event", attempt=attempt, lock=lock, event=kind, outcome=outcome)
        # A subscriber that blocks a loop would block its renewals: the documentation forbids it.
        if self._slow and not _runs_in_loop():
            time.sleep(self._slow)

    # ── threads ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _player(self, adapter: Adapter) -> Player:
        return Player(Inline(adapter), self._journal, self._hub, sleep_inline)

    def _choices(self, name: str) -> Choices:
        job = self._job
        return Choices(f"{job.seed}-{job.number}-{name}", job.names, job.hot, job.ttl)

    def _play_in_thread(self, adapter: Adapter, name: str) -> None:
        choices, player = self._choices(name), self._player(adapter)
        while self._begin_turn():
            try:
                run_inline(player.play(choices.next()))
            except Exception:  # reported by the parent
                self._problem()
            finally:
                self._end_turn()
            time.sleep(choices.pause())

    def _take(self, arguments: dict[str, Any]) -> None:
        turn = Turn(
            arguments["lock"], self._job.ttl, arguments["timeout"], arguments["hold"], arguments.get("work", 0.0)
        )
        try:
            if self._adapters:
                self._taker = self._player(self._adapters[0])
                run_inline(self._taker.play(turn, self._dropped.is_set))
            else:
                asyncio.run(self._take_in_loop(turn))
        except Exception:  # reported by the parent
            self._problem()
        finally:
            self._is_taking = False

    async def _take_in_loop(self, turn: Turn) -> None:
        adapter = self._prepared(self._async[0])
        try:
            self._taker = Player(adapter, self._journal, self._hub, asyncio.sleep)
            await self._taker.play(turn, self._dropped.is_set)
        finally:
            await adapter.close()

    # ── forks ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _fork(self, lock: str) -> None:
        """Fork while this process holds a lease. The child dies without clean-up, as preforked servers do."""
        if not self._adapters:
            return
        adapter = self._adapters[0]
        try:
            held = adapter.acquire(lock, self._job.ttl, self._job.ttl * 2)
        except Exception:  # a fork is possible without a lease too
            held = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # forks beside threads are intended here
            pid = os.fork()
        if pid == 0:
            self._in_child(adapter, held, lock)
        if held is not None:
            time.sleep(_FORK_HOLD)
            with contextlib.suppress(Exception):
                adapter.release(held)
        self._await_child(pid)

    def _in_child(self, adapter: Adapter, held: Any, lock: str) -> None:
        try:
            signal.alarm(round(_CHILD_MAX))
            journal = self._journal
            journal.become_child()
            is_held = held is not None and adapter.is_held(held)
            journal.write("forked", lock=lock, held=is_held)
            run_inline(self._player(adapter).play(Turn(lock, self._job.ttl, self._job.ttl * 2, 0.0)))
        except BaseException:  # the child must not continue as a second worker
            self._problem()
        finally:
            os._exit(0)

    def _await_child(self, pid: int) -> None:
        end = now() + _CHILD_MAX
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if now() > end:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                break
            time.sleep(0.02)

    # ── tasks ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _play_in_loop(self, kind: AnyAdapter) -> None:
        adapter = self._prepared(kind)
        try:
            await asyncio.gather(*(self._play_in_task(adapter, f"task-{number}") for number in range(self._job.tasks)))
        finally:
            await adapter.close()

    async def _play_in_task(self, adapter: AsyncAdapter, name: str) -> None:
        choices, player = self._choices(name), Player(adapter, self._journal, self._hub, asyncio.sleep)
        while True:
            while not self._go.is_set():  # noqa: ASYNC110  (threads set the event)
                await asyncio.sleep(0.02)
            if not self._begin_turn():
                return
            try:
                await player.play(choices.next())
            except Exception:  # reported by the parent
                self._problem()
            finally:
                self._end_turn()
            await asyncio.sleep(choices.pause())

    # ── counting ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _begin_turn(self) -> bool:
        while True:
            self._go.wait()
            with self._mutex:
                if self._ended:
                    return False
                if self._go.is_set():
                    self._busy += 1
                    return True

    def _end_turn(self) -> None:
        with self._mutex:
            self._busy -= 1

    def _problem(self) -> None:
        self._journal.write("problem", text=traceback.format_exc()[-2000:])


def _runs_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def main() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    clock = WallClock()
    clock.install()
    logging.disable(logging.CRITICAL)  # thousands of losses and retries are expected here
    warnings.simplefilter("ignore")
    job = Job(**json.loads(sys.stdin.readline()))
    hub = Hub(job.hub, job.client)
    if job.proxied:
        Redirection(hub).install()
    worker = Worker(job, hub, clock)
    worker.start()
    _answer({"ready": True})
    for line in sys.stdin:
        command = json.loads(line)
        _answer(worker.command(**command))
        if command["do"] == "end":
            break
    os._exit(0)  # also if a driver left threads


def _answer(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
