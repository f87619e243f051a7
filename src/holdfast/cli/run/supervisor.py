"""`holdfast run` itself: acquire the lock, start the command through the guard, forward signals, release the lock."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import FrameType, MappingProxyType
from typing import Any, NamedTuple

from holdfast.backends.net.waker import Waker
from holdfast.cli import statuses
from holdfast.cli.run.guard import FORWARDED_SIGNALS, Guard
from holdfast.cli.run.terminal import give_terminal, is_foreground, may_lend_terminal
from holdfast.cli.text import escape
from holdfast.cli.times import timestamp
from holdfast.core.events import Event
from holdfast.core.once import MAX_HOLD, OnceCall, make_once_plan
from holdfast.core.periods import Period, claim
from holdfast.errors import AccessDenied, AcquireTimeout, BackendError, LockLost, OnceFailed, OnceInterrupted
from holdfast.primitives import Primitive
from holdfast.runtimes import system
from holdfast.runtimes.exits import raise_in_handler
from holdfast.runtimes.threads import Dispatcher, flush_log, run_sync
from holdfast.threads.client import Client
from holdfast.threads.locks import Lease, Lock

CHECK_INTERVAL = 1.0  # seconds between two checks of the lease that need no request to the store
GUARD_OVERDUE = 0.5  # seconds past the deadline after which `run` kills the command in place of the guard
KILL_MARGIN_MAX = 0.25  # seconds from SIGKILL to the end of the lease, when the keeper releases the lock
KILL_MARGIN_SHARE = 40  # for a ttl below 10 s, the margin is this part of it
WRITE_MAX = 0.2  # seconds to wait for the reader of stderr
NOT_EXECUTABLE, NOT_FOUND = 126, 127  # as in shells


class RunOptions(NamedTuple):
    """The options of the command line."""

    name: str
    command: Sequence[str]
    ttl: float
    timeout: float | None
    grace: float
    max_hold: float | None = None
    min_hold: float | None = None
    semaphore: int | None = None
    shared: bool = False
    period: Period | None = None  # there is at most one run in each
    meta: Mapping[str, str] = MappingProxyType({})
    busy_status: int = statuses.BUSY
    revocable: bool = False
    verbose: bool = False
    once: Mapping[str, Any] | None = None  # if given, the name is a key of `once`, with these options


def run(options: RunOptions, connect: Callable[[], Client]) -> int:
    """Run the command under the lock. Return its exit status, or a status of ours if it did not run or was ended."""
    guard = Guard(options.command)  # before any thread is started and any store is opened
    signals = _Signals()
    try:
        _set_up_logging(with_time=options.verbose)
        # Without the arguments, which may contain secrets.
        system.set_program(os.path.basename(options.command[0]))
        with connect() as client:
            return _Supervisor(options, client, guard, signals).run()
    except _Interrupted as interrupted:
        return 128 + interrupted.number
    finally:
        signals.are_deferred = True  # not by a method: a signal that arrives at its call would end the clean-up
        guard.close()
        signals.restore()
        _flush()


class CommandFailed(Exception):
    """The command ended with a status other than 0."""


class _Supervisor:
    def __init__(self, options: RunOptions, client: Client, guard: Guard, signals: _Signals) -> None:
        self._options = options
        self._client = client
        self._guard = guard
        self._signals = signals
        self._lease: Lease | None = None
        self._is_revoked = False
        self._lent_terminal = False
        # When the guard kills the command, unless the lease is renewed; on the clock of `system.now`.
        self._deadline = 0.0
        self._hard_deadline = float("inf")  # --max-hold
        self._kill_margin = min(KILL_MARGIN_MAX, options.ttl / KILL_MARGIN_SHARE)
        self._grace = min(options.grace, options.ttl / 2 - self._kill_margin)
        self._hard_grace = 0.0 if options.max_hold is None else min(self._grace, options.max_hold / 2)
        self._was_late = self._ended_by_guard = False
        self._once = self._make_once()

    def run(self) -> int:
        options = self._options
        self._client.subscribe(self._on_event)
        lock = self._lock()
        try:
            if options.period is not None and not self._claims(options.period):
                return statuses.DONE
            if self._once is not None and self._is_over(self._once.look()):
                return statuses.DONE
            with lock as lease:
                self._signals.are_deferred = True
                if self._once is not None and self._is_over(self._once.start(lease)):
                    return statuses.DONE
                if options.verbose:
                    _print(f"got lock {options.name!r}, fence {lease.fence}")
                status = self._run_command(lease)
                ended_at = system.now()
                if self._once is not None:
                    self._record(self._once, lease, status)
        except AcquireTimeout as error:
            _print(str(error))
            return options.busy_status
        except LockLost:
            return statuses.LOST  # the reason was logged
        except (OnceInterrupted, OnceFailed) as error:
            _print(str(error))
            return statuses.INTERRUPTED
        except AccessDenied:
            raise  # an error of the configuration, with its own status
        except BackendError as error:
            _print(str(error))
            return statuses.UNAVAILABLE
        if self._is_revoked:
            return statuses.REVOKED
        if self._was_late:
            _print("the lease had almost expired before the command could start: the command was not run")
            return statuses.LOST
        if ended_at >= self._hard_deadline - self._hard_grace:
            _print(f"max_hold of {options.max_hold:g} s was reached: the command was ended")
            return statuses.LOST
        if self._ended_by_guard:  # the lease was renewed later, or released in time
            _print("the lease was not renewed in time: the command was ended")
            return statuses.LOST
        self._raise_same_signal(status)
        return status if status >= 0 else 128 - status

    def _claims(self, period: Period) -> bool:
        """Claim the run of this period. False: another call has done so, on this machine or on another."""
        self._client._require_primitive(Primitive.ONCE_PER)  # noqa: SLF001 - as the decorator `once_per` does
        if run_sync(claim(self._client._engine, self._options.name, period)):  # noqa: SLF001 - as above
            return True
        if self._options.verbose or sys.stderr.isatty():
            _print(f"skipped: {self._options.name!r} has had its run in this period")
        return False

    def _is_over(self, step: Coroutine[Any, Any, None]) -> bool:
        """Whether the key has had its run, according to this step."""
        run_sync(step)
        if self._once is None or self._once.outcome is None:
            return False
        if self._options.verbose or sys.stderr.isatty():
            _print(f"skipped: the key {self._options.name!r} has had its run")
        return True

    def _record(self, call: OnceCall, lease: Lease, status: int) -> None:
        """Record how the command ended. A run that the loss of its lease has ended stays as interrupted."""
        if self._was_late:
            run_sync(call.withdraw())  # it was not started
        elif status == 0:
            run_sync(call.complete(lease, None))
        elif not (lease.lost or self._ended_by_guard):
            run_sync(call.body_raised(lease, CommandFailed(f"exit status {status if status >= 0 else 128 - status}")))

    def _make_once(self) -> OnceCall | None:
        options = self._options
        if options.once is None:
            return None
        self._client._require_primitive(Primitive.ONCE)  # noqa: SLF001 - as `client.once` does
        once_options = {
            **options.once,
            "stop_margin": self._grace + self._kill_margin,
            "meta": options.meta,
            # The guard enforces --max-hold, and the lock is kept until the command has ended.
            "max_hold": max(MAX_HOLD, (options.max_hold or 0.0) + options.ttl),
        }
        plan = make_once_plan(options.name, ttl=options.ttl, options=once_options)
        return OnceCall(self._client._engine, plan, plan.key, None)  # noqa: SLF001 - as above

    def _lock(self) -> Lock:
        options = self._options
        if self._once is not None:
            return Lock(self._client, self._once.spec, options.timeout)
        lock_options: dict[str, Any] = {
            "ttl": options.ttl,
            "timeout": options.timeout,
            "stop_margin": self._grace + self._kill_margin,
            # No max_hold: the lease would be released at the moment at which the command is killed. The guard enforces
            # max_hold instead, and the lock is kept until the command has ended.
            "revocable": options.revocable,
            "meta": options.meta,
        }
        if options.min_hold:
            lock_options["min_hold"] = options.min_hold
        if options.semaphore is not None:
            return self._client.semaphore(options.name, options.semaphore, **lock_options)
        if options.shared:
            return self._client.rwlock(options.name, **lock_options).read()
        return self._client.lock(options.name, **lock_options)

    # ── while the command runs ───────────────────────────────────────────────────────────────────────────────────

    def _run_command(self, lease: Lease) -> int:
        """Run the command to its end. Return its status, negative if a signal ended it."""
        options = self._options
        self._lent_terminal = may_lend_terminal()
        _flush()  # our messages precede the output of the command
        self._deadline = self._deadline_of(lease)
        if options.max_hold is not None:
            self._hard_deadline = system.now() + options.max_hold
        self._lease = lease
        if lease.revoke_requested:  # the event was delivered before self._lease was set
            self._on_revoke()
        self._guard.start(
            {"HOLDFAST_LOCK": lease.name, "HOLDFAST_FENCE": str(lease.fence)},
            deadline=self._deadline,
            grace=self._grace,
            takes_terminal=self._lent_terminal,
            liveness_fds=self._client.liveness_fds,
            hard_deadline=self._hard_deadline,
            hard_grace=self._hard_grace,
        )
        _detach_stdout()
        try:
            while True:
                ready, _, _ = select.select([self._guard.fileno(), self._signals.fileno()], (), (), CHECK_INTERVAL)
                for number in self._signals.received():
                    self._guard.send("signal", number=number)
                if self._guard.fileno() in ready:
                    message = self._guard.receive()
                    if message is None:
                        return self._guard_was_killed()
                    status = self._handle_message(message)
                    if status is not None:
                        return status
                self._check_lease(lease)
        except BaseException:
            self._guard.close()  # ends the command before the lock is released
            raise
        finally:
            if self._lent_terminal:
                give_terminal(os.getpgrp())

    def _handle_message(self, message: Mapping[str, Any]) -> int | None:
        match message["event"]:
            case "started":
                self._guard.command = message["pid"]
            case "late":
                self._was_late = True
                return 0
            case "failed":
                return self._cannot_start(message["errno"])
            case "stopped":
                self._stop_with_command(message["number"])
            case "left":
                _print(
                    f"the command has ended ({_describe(message['status'])}), but its child processes have not; "
                    "the lock is kept until they have"
                )
            case "ended":
                status: int = message["status"]
                self._ended_by_guard = message["by_guard"]
                return status
            case unknown:
                raise AssertionError(unknown)
        return None

    def _check_lease(self, lease: Lease) -> None:
        """Detect a removed store, which the keeper does not. Kill the command if the guard is stopped."""
        hard_deadline = self._hard_deadline
        try:
            lease.check()
        except LockLost:
            self._guard.send("lost")
            hard_deadline = min(hard_deadline, self._deadline)
        if system.now() > hard_deadline + GUARD_OVERDUE:
            self._guard.kill_command()
        if system.now() > self._hard_deadline + 2 * GUARD_OVERDUE:
            self._guard.kill()  # otherwise the lock would be kept as long as the guard is stopped

    def _on_event(self, event: Event) -> None:
        """Forward events to the guard. Runs on the keeper's thread or on ours."""
        if event.kind == "queued" and (self._options.verbose or sys.stderr.isatty()):
            _print(f"waiting for lock {self._options.name!r}" + (f", held by {event.reason}" if event.reason else ""))
        lease = self._lease
        if lease is None:
            return
        match event.kind:
            case "renewed":
                self._deadline = max(self._deadline, self._deadline_of(lease))
                self._guard.send("extend", deadline=self._deadline)
            case "lost":
                self._guard.send("lost")
            case "revoke requested":
                self._on_revoke()
            case _:
                pass

    def _on_revoke(self) -> None:
        if not self._is_revoked:
            self._is_revoked = True
            self._guard.send("end")
            _print(f"lock {self._options.name!r} was revoked: ending the command")

    def _deadline_of(self, lease: Lease) -> float:
        """A lower bound of the deadline, minus a margin so that the command is dead when the lease ends."""
        return system.now() + lease.remaining - self._kill_margin  # in this order, so that it is a lower bound

    def _guard_was_killed(self) -> int:
        """The kernel has killed the command; kill the rest of its process group."""
        _print("the guard process was killed: killing the command")
        while self._guard.kill_command() and system.now() < self._deadline:
            self._guard.reap_orphans()
            time.sleep(0.001)  # polling: there is no descriptor to wait for
        return -signal.SIGKILL

    def _cannot_start(self, number: int) -> int:
        _print(f"cannot run {self._options.command[0]!r}: {os.strerror(number)}")
        return NOT_FOUND if number == errno.ENOENT else NOT_EXECUTABLE

    # ── the terminal ─────────────────────────────────────────────────────────────────────────────────────────────

    def _stop_with_command(self, number: int) -> None:
        """The command was stopped, for example by Ctrl-Z. Stop as well, so that the shell continues.

        The lease is not renewed while we are stopped: the guard kills the stopped command at the deadline.
        """
        if self._lent_terminal and number != signal.SIGSTOP:
            give_terminal(os.getpgrp())
            _print(
                f"stopped: the command is killed unless it is continued within {self._deadline - system.now():.0f} s"
            )
            _flush()
            os.killpg(0, signal.SIGSTOP)  # the whole job, as Ctrl-Z does; the shell continues us here
            if is_foreground() and self._guard.command is not None:
                give_terminal(self._guard.command)
            self._guard.send("signal", number=signal.SIGCONT)

    def _raise_same_signal(self, status: int) -> None:
        """Raise the signal in our own process group too: Ctrl-C reached only the command, but is meant for the job."""
        if self._lent_terminal and status in (-signal.SIGINT, -signal.SIGQUIT):
            self._client.close()
            self._guard.close()
            _flush()
            signal.signal(-status, signal.SIG_DFL)
            os.killpg(0, -status)


def _describe(status: int) -> str:
    return f"status {status}" if status >= 0 else f"by {signal.Signals(-status).name}"


def _detach_stdout() -> None:
    """Close our copy of stdout, so that its reader sees the end of file when the command closes it."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1, inheritable=False)
    os.close(null)


_messages = Dispatcher("messages")  # a reader that does not read must not delay the end of the command


_with_time = False  # in each message


def _print(text: str) -> None:
    _post(escape(text))


def _post(text: str) -> None:
    moment = f"{timestamp(time.time())} " if _with_time else ""
    _messages.post(lambda: _write(f"holdfast: {moment}{text}"))


def _flush() -> None:
    """Wait until all messages are written, with a limit."""
    flush_log(WRITE_MAX)
    run_sync(_messages.drain(system.now() + WRITE_MAX))


def _write(text: str) -> None:
    # sys.stderr is not used, because at exit the interpreter would wait for the lock of its buffer.
    rest = f"{text}\n".encode(sys.stderr.encoding, errors="backslashreplace")
    with contextlib.suppress(OSError):  # stderr is closed
        while rest:
            rest = rest[os.write(2, rest) :]


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        # Write on the thread of `_messages`: at exit `logging` waits for the lock that a handler holds while it writes.
        _post(self.format(record))


def _set_up_logging(*, with_time: bool) -> None:
    global _with_time
    _with_time = with_time
    log = logging.getLogger("holdfast")
    log.addHandler(_Handler())
    log.propagate = False


class _Interrupted(BaseException):
    """A signal was received during the wait for the lock. A BaseException, so that no `except Exception` handles it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _Signals:
    """The forwarded signals. The first one ends the wait for the lock. Later ones are recorded for `received`."""

    def __init__(self) -> None:
        self.are_deferred = False  # also the first one is recorded
        self._has_raised = False
        self._numbers: list[int] = []
        self._waker = Waker()
        signal.set_wakeup_fd(self._waker.writing_end, warn_on_full_buffer=False)
        self._previous = {
            number: signal.signal(number, self._on_signal)
            for number in FORWARDED_SIGNALS
            if signal.getsignal(number) is not signal.SIG_IGN  # nohup, a background job of a script
        }

    def fileno(self) -> int:
        return self._waker.fileno()

    def received(self) -> list[int]:
        """Return the signals received since the last call."""
        self._waker.drain()
        numbers, self._numbers = self._numbers, []
        return numbers

    def restore(self) -> None:
        signal.set_wakeup_fd(-1)
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._waker.close()

    def _forget(self) -> None:
        self._has_raised = False

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if not (self.are_deferred or self._has_raised):
            self._has_raised = True  # so that the release of the ticket is not interrupted
            raise_in_handler(_Interrupted(number), number, self._forget)
        self._numbers.append(number)
