"""The guard: the process between `holdfast run` and the command. It knows only a deadline, which it enforces.

    holdfast run     holds and renews the lease; sends the deadline to the guard
      guard          parent of the command; SIGTERM at deadline - grace, SIGKILL at the deadline or at --max-hold
        command      in a process group of its own

The guard is a separate process for two reasons. `holdfast run` can be stopped, or blocked on a dead disk, and then
cannot kill the command at the deadline. And the parent-death signal reaches a child, but not the children of the child.
Each of the three processes can be killed or stopped on its own:

    run killed        its end of the socket closes: the guard kills the whole command, waits for its end, and exits
    run stopped       the deadline is not extended: the guard kills the command at the deadline
    guard killed      the kernel kills the command, `run` kills the rest of its process group
    guard stopped     `run` kills the process group at the deadline
    both killed       the kernel kills the command; its child processes keep the lock until the ttl has passed

The guard and the command inherit `Client.liveness_fds`. A store that detects the death of a holder by these descriptors
grants the lock to the next client only when the last of the three processes has ended.

The command consists of its process group and of every descendant in the same session. The guard adopts orphans, so it
can wait for all of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from holdfast.backends.net.waker import Waker
from holdfast.cli.run import linux
from holdfast.cli.run.terminal import give_terminal
from holdfast.runtimes import system

MESSAGE_MAX = 8192  # bytes
LIVENESS_FDS_MAX = 16
POLL_INTERVAL = 0.2  # seconds between two checks for leftover processes, whose end sends no SIGCHLD
FORWARDED_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_IGNORED = (*FORWARDED_SIGNALS, signal.SIGPIPE, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)


class Guard:
    """The guard as `holdfast run` uses it. Create it before any thread is started and any store is opened: it forks."""

    def __init__(self, command: Sequence[str]) -> None:
        linux.adopt_orphans()  # of a guard that is killed
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            self._socket.close()
            _run_guard(theirs, command, parent)
        theirs.close()
        self.command: int | None = None  # pid and process group of the command

    def fileno(self) -> int:
        return self._socket.fileno()

    def start(
        self,
        environment: Mapping[str, str],
        *,
        deadline: float,
        grace: float,
        takes_terminal: bool,
        liveness_fds: Sequence[int],
        hard_deadline: float = float("inf"),
        hard_grace: float = 0.0,
    ) -> None:
        """Start the command with `environment` added to its own. No renewal extends `hard_deadline`."""
        request = {
            "command": "start",
            "environment": dict(environment),
            "deadline": deadline,
            "grace": grace,
            "takes_terminal": takes_terminal,
            "end": hard_deadline,
            "end_grace": hard_grace,
        }
        socket.send_fds(self._socket, [json.dumps(request).encode()], list(liveness_fds))

    def send(self, command: str, **arguments: float) -> None:
        """Send a message, from any thread, without blocking. The reader of its replies handles a guard that is dead."""
        with contextlib.suppress(OSError):
            self._socket.send(json.dumps({"command": command, **arguments}).encode(), socket.MSG_DONTWAIT)

    def receive(self) -> dict[str, Any] | None:
        """Return the next message of the guard, or None if it has ended."""
        data = b""
        with contextlib.suppress(ConnectionResetError):
            data = self._socket.recv(MESSAGE_MAX)
        message: dict[str, Any] | None = json.loads(data) if data else None
        return message

    def kill_command(self) -> bool:
        """Kill the process group, if the guard does not. Return whether there was a process to kill."""
        with contextlib.suppress(ProcessLookupError):
            if self.command is not None:
                os.killpg(self.command, signal.SIGKILL)
                return True
        return False

    def kill(self) -> None:
        """Kill the guard, also if it is stopped. The kernel then kills the command."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    def reap_orphans(self) -> None:
        """Reap adopted processes that have ended."""
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    def close(self) -> None:
        """Close the socket and wait for the guard. It ends at once, or when its command has been killed."""
        self._socket.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _run_guard(sock: socket.socket, command: Sequence[str], parent: int) -> NoReturn:
    try:
        _GuardProcess(sock, command, parent).run()
    except BaseException:  # a bug: the kernel kills the command when this process exits
        traceback.print_exc()
    finally:
        os._exit(0)  # the rest of the program belongs to the parent process


class _GuardProcess:
    """The process itself: one thread, one loop."""

    def __init__(self, sock: socket.socket, command: Sequence[str], parent: int) -> None:
        self._socket = sock
        self._command = command
        self._parent = parent
        self._deadline = float("inf")
        self._grace = 0.0
        self._hard_deadline = float("inf")  # --max-hold
        self._hard_grace = 0.0
        self._is_ending = False  # SIGTERM was sent; this is final
        self._is_revoked = False  # possibly before the command has started
        self._group: int | None = None
        self._status: int | None = None  # of the command, when it has ended
        self._leftovers_reported = False
        os.setpgid(0, 0)  # so that signals of the terminal do not reach the guard
        self._inherited: dict[int, Any] = {number: signal.getsignal(number) for number in signal.valid_signals()}
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        linux.adopt_orphans()
        linux.rename(b"holdfast-guard")
        self._waker = Waker()
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker.writing_end, warn_on_full_buffer=False)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._poll.register(self._waker, select.POLLIN)
        self._alarm = linux.Alarm(self._poll)

    def run(self) -> None:
        while os.getppid() == self._parent or self._group is not None:
            ready = self._alarm.wait(self._next_check())
            self._waker.drain()
            # Read messages before the clock: after a stop of this process, a renewal may be waiting in the socket.
            if self._socket.fileno() in ready and not self._handle_message():
                if self._group is None:
                    return
                self._deadline = float("-inf")
            self._enforce()
            self._reap()
            if self._status is not None and self._all_ended():
                self._send("ended", status=self._status, by_guard=self._is_ending)
                return

    def _next_check(self) -> float | None:
        """When to check the clock again at the latest."""
        if self._group is None:
            return None
        now = system.now()
        if now >= self._kill_at:
            return now + POLL_INTERVAL
        due = self._kill_at if self._is_ending else self._term_at
        return due if self._status is None else min(due, now + POLL_INTERVAL)

    @property
    def _kill_at(self) -> float:
        return min(self._deadline, self._hard_deadline)

    @property
    def _term_at(self) -> float:
        return min(self._deadline - self._grace, self._hard_deadline - self._hard_grace)

    def _handle_message(self) -> bool:
        """Handle a message of `holdfast run`. Return False if it has ended."""
        message, liveness_fds, _, _ = socket.recv_fds(self._socket, MESSAGE_MAX, LIVENESS_FDS_MAX)
        if not message:
            self._poll.unregister(self._socket)
            return False
        request = json.loads(message)
        match request["command"]:
            case "start":
                self._deadline, self._grace = request["deadline"], request["grace"]
                self._hard_deadline, self._hard_grace = request["end"], request["end_grace"]
                if self._is_revoked or system.now() >= self._term_at:
                    self._send("late")
                else:
                    self._start(request["environment"], liveness_fds, takes_terminal=request["takes_terminal"])
            case "extend" if not (self._is_ending or self._is_revoked):
                self._deadline = max(self._deadline, request["deadline"])
            case "signal" if self._group is not None:
                self._signal(request["number"])
            case "end":  # the lease is kept until the command has ended
                self._is_revoked = True
                if not self._is_ending:
                    self._deadline = min(self._deadline, system.now() + self._grace)
            case "lost" if system.now() < self._deadline - self._grace:
                self._deadline = float("-inf")  # the lease was taken, not expired: there may be another holder already
        return True

    # ── the command ──────────────────────────────────────────────────────────────────────────────────────────────

    def _start(self, environment: Mapping[str, str], liveness_fds: Sequence[int], *, takes_terminal: bool) -> None:
        for fd in liveness_fds:
            os.set_inheritable(fd, True)  # noqa: FBT003  (its only argument; the command keeps them open too)
        failed, fail = os.pipe()
        guard = os.getpid()
        pid = os.fork()
        if pid == 0:
            whole = {**os.environ, **environment}
            _exec_command(self._command, whole, self._inherited, guard, fail, takes_terminal=takes_terminal)
        os.close(fail)
        with contextlib.suppress(OSError):  # the child has done so itself, or has ended
            os.setpgid(pid, pid)
        with open(failed, "rb") as file:
            error = file.read()
        if error:
            os.waitpid(pid, 0)
            self._send("failed", errno=int(error))
            return
        self._group = pid
        # Only the command keeps these open from here on, so that a reader of its output sees the end of file.
        null = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd, inheritable=False)
        self._send("started", pid=pid)

    def _enforce(self) -> None:
        now = system.now()
        if self._group is None:
            return
        if now >= self._kill_at:
            self._signal(signal.SIGKILL)
            for pid in self._live_children():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        elif now >= self._term_at and not self._is_ending:
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)  # a stopped process could not handle SIGTERM
        else:
            return
        self._is_ending = True

    def _signal(self, number: int) -> None:
        if self._group is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._group, number)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid != self._group:
                continue
            if os.WIFSTOPPED(status):
                self._send("stopped", number=os.WSTOPSIG(status))
            else:
                self._status = os.waitstatus_to_exitcode(status)

    def _all_ended(self) -> bool:
        """Whether the command and all processes that it left behind have ended."""
        if not self._group_lives() and next(self._live_children(), None) is None:
            return True
        if not self._leftovers_reported:
            self._leftovers_reported = True
            self._send("left", status=self._status)
        return False

    def _group_lives(self) -> bool:
        try:
            if self._group is not None:
                os.killpg(self._group, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True  # a process of another user
        return True

    def _live_children(self) -> Iterator[int]:
        """Yield the pids of the children: the command, and its orphans that have not started a session of their own."""
        me, session = os.getpid(), os.getsid(0)
        for pid, parent, theirs, state in _processes():
            if parent == me and theirs == session and state not in "ZX":
                yield pid

    def _send(self, event: str, **facts: object) -> None:
        with contextlib.suppress(OSError):  # `holdfast run` has ended and needs no reply
            self._socket.send(json.dumps({"event": event, **facts}).encode(), socket.MSG_DONTWAIT)


def _exec_command(
    command: Sequence[str],
    environment: Mapping[str, str],
    signals: Mapping[int, Any],
    guard: int,
    fail: int,
    *,
    takes_terminal: bool,
) -> NoReturn:
    """In the child of the guard: execute the command, or write the error number to `fail`."""
    try:
        os.setpgid(0, 0)
        if takes_terminal:
            give_terminal(os.getpgrp())
        linux.die_with_parent(signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(1)
        signal.set_wakeup_fd(-1)
        for number, handler in signals.items():
            # Python ignores SIGPIPE and SIGXFSZ; other programs do not expect that.
            keep_ignoring = handler is signal.SIG_IGN and number not in (signal.SIGPIPE, signal.SIGXFSZ)
            with contextlib.suppress(OSError):  # SIGKILL, SIGSTOP
                signal.signal(number, signal.SIG_IGN if keep_ignoring else signal.SIG_DFL)
        os.execvpe(command[0], list(command), environment)  # noqa: S606  (the command of the user)
    except OSError as error:
        os.write(fail, str(error.errno).encode())
    finally:
        os._exit(127)


def _processes() -> Iterator[tuple[int, int, int, str]]:
    """Yield pid, parent, session and state of every process."""
    try:
        names = os.listdir("/proc")
    except OSError:  # not Linux: only the process group can be checked
        return
    for name in names:
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    after_name = file.read().rpartition(b")")[2].split()
            except OSError:
                continue  # it has ended
            yield int(name), int(after_name[1]), int(after_name[3]), after_name[0].decode()
