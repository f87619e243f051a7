"""`holdfast run` itself: takes the lock, has the guard start the command, passes signals on, gives the lock back."""

from __future__ import annotations

import errno
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.cli import statuses
from holdfast.cli.run.guard import PASSED_ON, Guard
from holdfast.cli.run.terminal import give_terminal, is_foreground, may_lend_terminal
from holdfast.cli.text import escape
from holdfast.errors import AcquireTimeout, BackendError, LockLost
from holdfast.runtimes import system

if TYPE_CHECKING:
    from holdfast.client import Client, Lease, Lock
    from holdfast.core.events import Event

LOOK = 1.0  # seconds between two looks at what can be seen of the lease without asking the store
OVERDUE = 0.5  # seconds past the deadline after which a guard that has not killed the command is helped
NOT_EXECUTABLE, NOT_FOUND = 126, 127  # as shells say it


class Plan(NamedTuple):
    """What the command line asks for."""

    name: str
    command: Sequence[str]
    ttl: float
    timeout: float | None
    grace: float
    max_hold: float | None
    semaphore: int | None
    shared: bool
    meta: Mapping[str, str]
    busy_status: int
    revocable: bool
    verbose: bool


def run(plan: Plan, connect: Callable[[], Client]) -> int:
    """Run the command under the lock; its exit status, or one that says why it did not run or was ended."""
    guard = Guard(plan.command)  # first of all: there are no threads yet, and no store is open
    signals = _Signals()
    try:
        _set_up_logging()
        with connect() as client:
            return _Run(plan, client, guard, signals).run()
    except _Interrupted as interrupted:
        return 128 + interrupted.number
    finally:
        guard.close()
        signals.restore()


class _Run:
    def __init__(self, plan: Plan, client: Client, guard: Guard, signals: _Signals) -> None:
        self._plan = plan
        self._client = client
        self._guard = guard
        self._signals = signals
        self._lease: Lease | None = None
        self._is_revoked = False
        self._lent_terminal = False
        self._deadline = 0.0

    def run(self) -> int:
        plan = self._plan
        self._client.subscribe(self._tell)
        lock = self._lock()
        try:
            with lock as lease:
                self._signals.hold()
                if plan.verbose:
                    _say(f"got lock {plan.name!r}, fence {lease.fence}")
                status = self._under(lease)
        except AcquireTimeout as error:
            _say(str(error))
            return plan.busy_status
        except LockLost:
            return statuses.LOST  # the log has said why
        except BackendError as error:
            _say(str(error))
            return statuses.UNAVAILABLE
        if self._is_revoked:
            return statuses.REVOKED
        self._die_as_it_did(status)
        return status if status >= 0 else 128 - status

    def _lock(self) -> Lock:
        plan = self._plan
        options: dict[str, Any] = {
            "ttl": plan.ttl,
            "timeout": plan.timeout,
            "stop_margin": plan.grace,
            "max_hold": plan.max_hold,
            "revocable": plan.revocable,
            "meta": {"command": os.path.basename(plan.command[0]), **plan.meta},
        }
        if plan.semaphore is not None:
            return self._client.semaphore(plan.name, plan.semaphore, **options)
        if plan.shared:
            return self._client.rwlock(plan.name, **options).read()
        return self._client.lock(plan.name, **options)

    # ── while the command runs ───────────────────────────────────────────────────────────────────────────────────

    def _under(self, lease: Lease) -> int:
        """Have the command run to its end and return its status, negative if a signal ended it."""
        plan = self._plan
        self._lent_terminal = may_lend_terminal()
        self._deadline = _deadline_of(lease)
        self._lease = lease
        if lease.revoke_requested:  # told before there was anybody to tell
            self._end_on_request()
        self._guard.start(
            {"HOLDFAST_LOCK": lease.name, "HOLDFAST_FENCE": str(lease.fence)},
            deadline=self._deadline,
            grace=plan.grace,
            takes_terminal=self._lent_terminal,
            lifelines=self._client.lifelines,
        )
        _leave_output_to_the_command()
        try:
            while True:
                ready, _, _ = select.select([self._guard.fileno(), self._signals.fileno()], (), (), LOOK)
                for number in self._signals.received():
                    self._guard.tell("signal", number=number)
                if self._guard.fileno() in ready:
                    said = self._guard.hear()
                    if said is None:
                        return self._without_guard()
                    status = self._hear(said)
                    if status is not None:
                        return status
                self._look_after(lease)
        except BaseException:
            self._guard.close()  # which ends the command; before the lock is given back
            raise
        finally:
            self._take_back_terminal()

    def _hear(self, said: Mapping[str, Any]) -> int | None:
        match said["what"]:
            case "started":
                self._guard.command = said["pid"]
            case "late":
                return 0  # the lease was over before it began, and is found lost at once
            case "failed":
                return self._cannot_start(said["errno"])
            case "stopped":
                self._stop_too(said["number"])
            case "left":
                _say(
                    f"the command has ended ({_describe(said['status'])}), but processes that it started have not; "
                    "the lock is kept until they have"
                )
            case "ended":
                status: int = said["status"]
                return status
            case unknown:
                raise AssertionError(unknown)
        return None

    def _look_after(self, lease: Lease) -> None:
        """What the keeper does not see by itself: a store taken away. And what a stopped guard does not do."""
        try:
            lease.check()
        except LockLost:
            if system.now() > self._deadline + OVERDUE:
                self._guard.kill_command()

    def _tell(self, event: Event) -> None:
        """On the keeper's thread, or ours: pass on to the guard what it has to know."""
        if event.kind == "waiting" and (self._plan.verbose or sys.stderr.isatty()):
            _say(f"waiting for lock {self._plan.name!r}" + (f", held by {event.reason}" if event.reason else ""))
        lease = self._lease
        if lease is None:
            return
        if event.kind == "renewed":
            self._deadline = max(self._deadline, _deadline_of(lease))
            self._guard.tell("extend", deadline=self._deadline)
        elif event.kind == "lost":
            self._guard.tell("lost")
        elif event.kind == "revoke requested":
            self._end_on_request()

    def _end_on_request(self) -> None:
        if not self._is_revoked:
            self._is_revoked = True
            _say(f"somebody asks for lock {self._plan.name!r}: the command is ended")
            self._guard.tell("end")

    def _without_guard(self) -> int:
        """Somebody killed it. The kernel has killed the command then; the rest is for us."""
        _say("the guard process was killed, and so is the command")
        while self._guard.kill_command() and system.now() < self._deadline:
            self._guard.bury_orphans()
            time.sleep(0.001)  # until all are gone: there is nothing to wait on
        return -signal.SIGKILL

    def _cannot_start(self, number: int) -> int:
        _say(f"cannot run {self._plan.command[0]!r}: {os.strerror(number)}")
        return NOT_FOUND if number == errno.ENOENT else NOT_EXECUTABLE

    # ── the terminal ─────────────────────────────────────────────────────────────────────────────────────────────

    def _stop_too(self, number: int) -> None:
        """The command was stopped, by Ctrl-Z or by somebody. Stop as well, so that the shell takes over.

        Nobody renews the lease meanwhile: the guard kills the command at the deadline, stopped as it is.
        """
        if self._lent_terminal and number != signal.SIGSTOP:
            give_terminal(os.getpgrp())
            _say(f"stopped: unless it goes on within {self._deadline - system.now():.0f} s, the command is killed")
            os.killpg(0, signal.SIGSTOP)  # our whole job, as Ctrl-Z would have; we go on here when the shell says so
            if is_foreground() and self._guard.command is not None:
                give_terminal(self._guard.command)
            self._guard.tell("signal", number=signal.SIGCONT)

    def _take_back_terminal(self) -> None:
        if self._lent_terminal:
            give_terminal(os.getpgrp())

    def _die_as_it_did(self, status: int) -> None:
        """Ctrl-C went to the command alone; it was meant for whatever runs in the foreground, such as a script."""
        if self._lent_terminal and status in (-signal.SIGINT, -signal.SIGQUIT):
            self._client.close()
            self._guard.close()
            signal.signal(-status, signal.SIG_DFL)
            os.killpg(0, -status)


def _deadline_of(lease: Lease) -> float:
    """A lower bound, on the clock of `system.now`."""
    now = system.now()
    return now + lease.remaining


def _describe(status: int) -> str:
    return f"status {status}" if status >= 0 else f"by {signal.Signals(-status).name}"


def _leave_output_to_the_command() -> None:
    """Who reads its output sees the end of it when the command ends or closes it."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1, inheritable=False)
    os.close(null)


def _say(text: str) -> None:
    print("holdfast:", escape(text), file=sys.stderr, flush=True)


def _set_up_logging() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("holdfast: %(message)s"))
    log = logging.getLogger("holdfast")
    log.addHandler(handler)
    log.propagate = False


class _Interrupted(BaseException):
    """A signal came while we waited for the lock. Not an Exception: nobody on the way may take it for a failure."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _Signals:
    """Those that are passed on: they end the wait for the lock; from `hold` on they are noted, to be read."""

    def __init__(self) -> None:
        self._are_held = False
        self._numbers: list[int] = []
        self._read, self._write = os.pipe()
        for fd in (self._read, self._write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._before = {
            number: signal.signal(number, self._note)
            for number in PASSED_ON
            if signal.getsignal(number) is not signal.SIG_IGN  # nohup, a job in the background of a script
        }

    def fileno(self) -> int:
        return self._read

    def hold(self) -> None:
        self._are_held = True

    def received(self) -> list[int]:
        """The numbers of those that came since the last look."""
        try:
            os.read(self._read, 4096)
        except BlockingIOError:
            return []
        numbers, self._numbers = self._numbers, []
        return numbers

    def restore(self) -> None:
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)

    def _note(self, number: int, _: FrameType | None) -> None:
        if not self._are_held:
            raise _Interrupted(number)
        self._numbers.append(number)
