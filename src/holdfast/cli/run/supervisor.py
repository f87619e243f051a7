"""`holdfast run` itself: takes the lock, has the guard start the command, passes signals on, gives the lock back."""

from __future__ import annotations

import contextlib
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
from holdfast.cli.durations import stamp
from holdfast.cli.run.guard import PASSED_ON, Guard
from holdfast.cli.run.terminal import give_terminal, is_foreground, may_lend_terminal
from holdfast.cli.text import escape
from holdfast.errors import AcquireTimeout, BackendError, LockLost
from holdfast.runtimes import system
from holdfast.runtimes.threads import Dispatcher, flush_log, run_sync

if TYPE_CHECKING:
    from holdfast.client import Client, Lease, Lock
    from holdfast.core.events import Event

LOOK = 1.0  # seconds between two looks at what can be seen of the lease without asking the store
OVERDUE = 0.5  # seconds past the deadline after which a guard that has not killed the command is helped
KILL_MARGIN_MAX = 0.25  # seconds from SIGKILL to the end of the lease, when the keeper gives the lock back; less if
KILL_MARGIN_SHARE = 40  # the ttl is below ten seconds: this part of it
WRITE_MAX = 0.2  # seconds to wait for whoever reads our messages
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
        _set_up_messages(with_time=plan.verbose)
        # Without its arguments, which may be secret.
        system.set_program(os.path.basename(plan.command[0]))
        with connect() as client:
            return _Run(plan, client, guard, signals).run()
    except _Interrupted as interrupted:
        return 128 + interrupted.number
    finally:
        guard.close()
        signals.restore()
        _flush()


class _Run:
    def __init__(self, plan: Plan, client: Client, guard: Guard, signals: _Signals) -> None:
        self._plan = plan
        self._client = client
        self._guard = guard
        self._signals = signals
        self._lease: Lease | None = None
        self._is_revoked = False
        self._lent_terminal = False
        self._deadline = (
            0.0  # when the guard kills the command, unless the lease is renewed; on the clock of `system.now`
        )
        self._end = float("inf")  # when it does so in any case
        self._kill_margin = min(KILL_MARGIN_MAX, plan.ttl / KILL_MARGIN_SHARE)
        self._grace = min(plan.grace, plan.ttl / 2 - self._kill_margin)
        self._end_grace = 0.0 if plan.max_hold is None else min(self._grace, plan.max_hold / 2)
        self._was_late = self._ended_by_guard = False

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
                ended_at = system.now()
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
        if self._was_late:
            _say("the lease was nearly over before the command could begin: it was not run")
            return statuses.LOST
        if ended_at >= self._end - self._end_grace:
            _say(f"max_hold of {plan.max_hold:g} s is reached: the command was ended")
            return statuses.LOST
        if self._ended_by_guard:  # and then the lease was renewed after all, or given back in time
            _say("the lease was not renewed in time: the command was ended")
            return statuses.LOST
        self._die_as_it_did(status)
        return status if status >= 0 else 128 - status

    def _lock(self) -> Lock:
        plan = self._plan
        options: dict[str, Any] = {
            "ttl": plan.ttl,
            "timeout": plan.timeout,
            "stop_margin": self._grace + self._kill_margin,
            # No max_hold: such a lease is given back at the moment at which the command is killed. The guard knows of
            # that moment, and the lock is kept until the command is gone.
            "revocable": plan.revocable,
            "meta": plan.meta,
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
        _flush()  # they come before what the command writes
        self._deadline = self._deadline_of(lease)
        if plan.max_hold is not None:
            self._end = system.now() + plan.max_hold
        self._lease = lease
        if lease.revoke_requested:  # told before there was anybody to tell
            self._end_on_request()
        self._guard.start(
            {"HOLDFAST_LOCK": lease.name, "HOLDFAST_FENCE": str(lease.fence)},
            deadline=self._deadline,
            grace=self._grace,
            takes_terminal=self._lent_terminal,
            liveness_fds=self._client.liveness_fds,
            end=self._end,
            end_grace=self._end_grace,
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
                self._was_late = True
                return 0
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
                self._ended_by_guard = said["by_guard"]
                return status
            case unknown:
                raise AssertionError(unknown)
        return None

    def _look_after(self, lease: Lease) -> None:
        """What the keeper does not see by itself: a store taken away. And what a stopped guard does not do."""
        end = self._end
        try:
            lease.check()
        except LockLost:
            self._guard.tell("lost")
            end = min(end, self._deadline)
        if system.now() > end + OVERDUE:
            self._guard.kill_command()
        if system.now() > self._end + 2 * OVERDUE:
            self._guard.kill()  # the lock is still ours, and would be for as long as the guard is stopped

    def _tell(self, event: Event) -> None:
        """On the keeper's thread, or ours: pass on to the guard what it has to know."""
        if event.kind == "waiting" and (self._plan.verbose or sys.stderr.isatty()):
            _say(f"waiting for lock {self._plan.name!r}" + (f", held by {event.reason}" if event.reason else ""))
        lease = self._lease
        if lease is None:
            return
        if event.kind == "renewed":
            self._deadline = max(self._deadline, self._deadline_of(lease))
            self._guard.tell("extend", deadline=self._deadline)
        elif event.kind == "lost":
            self._guard.tell("lost")
        elif event.kind == "revoke requested":
            self._end_on_request()

    def _end_on_request(self) -> None:
        if not self._is_revoked:
            self._is_revoked = True
            self._guard.tell("end")
            _say(f"somebody asks for lock {self._plan.name!r}: the command is ended")

    def _deadline_of(self, lease: Lease) -> float:
        """A lower bound, and so much earlier that the command is dead when the lease ends."""
        now = system.now()
        return now + lease.remaining - self._kill_margin

    def _without_guard(self) -> int:
        """It was killed. The kernel has killed the command then; the rest is for us."""
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
            _flush()
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
            _flush()
            signal.signal(-status, signal.SIG_DFL)
            os.killpg(0, -status)


def _describe(status: int) -> str:
    return f"status {status}" if status >= 0 else f"by {signal.Signals(-status).name}"


def _leave_output_to_the_command() -> None:
    """Who reads its output sees the end of it when the command ends or closes it."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1, inheritable=False)
    os.close(null)


_messages = Dispatcher("messages")  # a reader that has stopped reading must not hold up the end of the command


_with_time = False  # in each message


def _say(text: str) -> None:
    _post(escape(text))


def _post(text: str) -> None:
    moment = f"{stamp(time.time())} " if _with_time else ""
    _messages.post(lambda: _write(f"holdfast: {moment}{text}"))


def _flush() -> None:
    """Wait until all is written, but not for long."""
    flush_log(WRITE_MAX)
    run_sync(_messages.drain(system.now() + WRITE_MAX))


def _write(text: str) -> None:
    # Not through sys.stderr: at exit the interpreter would wait for the lock of its buffer.
    rest = f"{text}\n".encode(sys.stderr.encoding, errors="backslashreplace")
    with contextlib.suppress(OSError):  # it was closed: then there is no reader
        while rest:
            rest = rest[os.write(2, rest) :]


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        # Posted once more: at exit `logging` waits for the lock that a handler holds while it writes.
        _post(self.format(record))


def _set_up_messages(*, with_time: bool) -> None:
    global _with_time
    _with_time = with_time
    log = logging.getLogger("holdfast")
    log.addHandler(_Handler())
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
