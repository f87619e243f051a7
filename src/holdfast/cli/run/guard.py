"""The guard: the process between `holdfast run` and the command. It knows no lock, only a deadline, and enforces it.

    holdfast run     holds and renews the lease; tells the guard how long it lasts
      guard          parent of the command; SIGTERM at deadline - grace, SIGKILL at the deadline or at --max-hold
        command      in a process group of its own

Why a process of its own: one that is stopped, or blocked on a dead disk, cannot kill anything at the deadline; and the
kernel's parent-death signal reaches a child, not its children. Each of the three may be killed or stopped by itself:

    run killed        its end of the socket closes: the guard kills all of the command, sees that it is gone, and ends
    run stopped       no news from it: the guard kills the command at the deadline
    guard killed      the kernel kills the command, `run` the rest of its process group
    guard stopped     `run` kills the process group at the deadline
    both killed       the kernel kills the command; what it had started keeps the lock until the ttl is over

The guard and the command share what stands for the holder's life (`Client.liveness_fds`), so where a store lets others
in at a holder's death, it does so when the last of them is gone.

What belongs to the command: its process group, and every descendant that has not left the terminal session. The guard
adopts orphans, so it sees all of these end.
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

from holdfast.cli.run import kernel
from holdfast.cli.run.terminal import give_terminal
from holdfast.runtimes import system

MESSAGE_MAX = 8192  # bytes
LIFELINES_MAX = 16
POLL_INTERVAL = 0.2  # seconds between two looks for what a command has left behind, where no SIGCHLD tells
PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_IGNORED = (*PASSED_ON, signal.SIGPIPE, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)


class Guard:
    """The guard as `holdfast run` sees it. Fork it before there is any thread or open store."""

    def __init__(self, command: Sequence[str]) -> None:
        kernel.adopt_orphans()  # of a guard that is killed
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            self._socket.close()
            _be_guard(theirs, command, parent)
        theirs.close()
        self.command: int | None = None  # the pid of the command, which is its process group too

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
        end: float = float("inf"),
        end_grace: float = 0.0,
    ) -> None:
        """Start the command, with this added to its environment. No renewal moves `end`, and its own grace."""
        order = {
            "environment": dict(environment),
            "deadline": deadline,
            "grace": grace,
            "end": end,
            "end_grace": end_grace,
        }
        message = json.dumps({"do": "start", "takes_terminal": takes_terminal, **order})
        socket.send_fds(self._socket, [message.encode()], list(liveness_fds))

    def tell(self, do: str, **arguments: float) -> None:
        """From any thread. Does not wait: a guard that is stopped, or gone, is dealt with by who reads its answers."""
        with contextlib.suppress(OSError):
            self._socket.send(json.dumps({"do": do, **arguments}).encode(), socket.MSG_DONTWAIT)

    def hear(self) -> dict[str, Any] | None:
        """What it says next; None if it is gone."""
        try:
            said = self._socket.recv(MESSAGE_MAX)
        except ConnectionResetError:
            return None
        if not said:
            return None
        answer: dict[str, Any] = json.loads(said)
        return answer

    def kill_command(self) -> bool:
        """In place of a guard that does not; whether there was anything to kill."""
        try:
            if self.command is not None:
                os.killpg(self.command, signal.SIGKILL)
                return True
        except ProcessLookupError:
            pass
        return False

    def kill(self) -> None:
        """End the guard, also if it is stopped; the kernel then kills the command."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    def bury_orphans(self) -> None:
        """Those of its children that have ended and that nobody else waits for."""
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    def close(self) -> None:
        """Let it end; without a command it does so at once, with one only when that is gone."""
        self._socket.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _be_guard(orders: socket.socket, command: Sequence[str], parent: int) -> NoReturn:
    try:
        _Guard(orders, command, parent).run()
    except BaseException:  # a bug; the kernel kills the command with us
        traceback.print_exc()
    finally:
        os._exit(0)  # not a step further: the rest of this program is the other process's


class _Guard:
    """The guard itself: one thread, one loop."""

    def __init__(self, orders: socket.socket, command: Sequence[str], parent: int) -> None:
        self._orders = orders
        self._command = command
        self._parent = parent
        self._deadline = float("inf")
        self._grace = 0.0
        self._end = float("inf")  # --max-hold
        self._end_grace = 0.0
        self._is_ending = False  # SIGTERM was sent, and that is not taken back
        self._is_unwanted = False  # somebody asks for the lock, perhaps before the command has begun
        self._group: int | None = None
        self._status: int | None = None  # the command's, once it has ended
        self._told_leftovers = False
        os.setpgid(0, 0)  # signals of the terminal are not for us
        self._inherited: dict[int, Any] = {number: signal.getsignal(number) for number in signal.valid_signals()}
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        kernel.adopt_orphans()
        kernel.rename(b"holdfast-guard")
        self._wake, wake = socket.socketpair()
        self._wake.settimeout(0)
        wake.settimeout(0)
        self._keep = wake
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        self._poll = select.poll()
        self._poll.register(orders, select.POLLIN)
        self._poll.register(self._wake, select.POLLIN)
        self._alarm = kernel.Alarm(self._poll)

    def run(self) -> None:
        while os.getppid() == self._parent or self._group is not None:
            ready = self._alarm.wait(self._due())
            with contextlib.suppress(BlockingIOError):
                self._wake.recv(4096)
            # News of a renewal first, then the clock: whoever was stopped for a while has both waiting.
            if self._orders.fileno() in ready and not self._obey():
                if self._group is None:
                    return
                self._deadline = float("-inf")
            self._enforce()
            self._reap()
            if self._status is not None and self._is_gone():
                self._say("ended", status=self._status, by_guard=self._is_ending)
                return

    def _due(self) -> float | None:
        """When to look at the clock again, whatever happens."""
        if self._group is None:
            return None
        now = system.now()
        if now >= self._kill_at:
            return now + POLL_INTERVAL
        due = self._kill_at if self._is_ending else self._term_at
        return due if self._status is None else min(due, now + POLL_INTERVAL)

    @property
    def _kill_at(self) -> float:
        return min(self._deadline, self._end)

    @property
    def _term_at(self) -> float:
        return min(self._deadline - self._grace, self._end - self._end_grace)

    def _obey(self) -> bool:
        """Do what `holdfast run` says; False if it is gone."""
        said, liveness_fds, _, _ = socket.recv_fds(self._orders, MESSAGE_MAX, LIFELINES_MAX)
        if not said:
            self._poll.unregister(self._orders)
            return False
        order = json.loads(said)
        match order["do"]:
            case "start":
                self._deadline, self._grace = order["deadline"], order["grace"]
                self._end, self._end_grace = order["end"], order["end_grace"]
                if self._is_unwanted or system.now() >= self._term_at:
                    self._say("late")
                else:
                    self._start(order["environment"], liveness_fds, takes_terminal=order["takes_terminal"])
            case "extend" if not (self._is_ending or self._is_unwanted):
                self._deadline = max(self._deadline, order["deadline"])
            case "signal" if self._group is not None:
                self._signal(order["number"])
            case "end":  # as at the end of the lease, which goes on until the command is gone
                self._is_unwanted = True
                if not self._is_ending:
                    self._deadline = min(self._deadline, system.now() + self._grace)
            case "lost" if system.now() < self._deadline - self._grace:
                self._deadline = float("-inf")  # not run out but taken: somebody else may be in already
        return True

    # ── the command ──────────────────────────────────────────────────────────────────────────────────────────────

    def _start(self, environment: Mapping[str, str], liveness_fds: Sequence[int], *, takes_terminal: bool) -> None:
        for fd in liveness_fds:
            os.set_inheritable(fd, True)  # noqa: FBT003  (its only argument; the command's life counts too)
        failed, fail = os.pipe()
        guard = os.getpid()
        pid = os.fork()
        if pid == 0:
            whole = {**os.environ, **environment}
            _become(self._command, whole, self._inherited, guard, fail, takes_terminal=takes_terminal)
        os.close(fail)
        with contextlib.suppress(OSError):  # it has done so itself, or has even ended
            os.setpgid(pid, pid)
        with open(failed, "rb") as file:
            error = file.read()
        if error:
            os.waitpid(pid, 0)
            self._say("failed", errno=int(error))
            return
        self._group = pid
        # From here on the command alone keeps these open: who reads its output sees the end of it.
        null = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd, inheritable=False)
        self._say("started", pid=pid)

    def _enforce(self) -> None:
        now = system.now()
        if self._group is None:
            return
        if now >= self._kill_at:
            self._signal(signal.SIGKILL)
            for pid in self._rest():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        elif now >= self._term_at and not self._is_ending:
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)  # or one that is stopped could not end in time
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
                self._say("stopped", number=os.WSTOPSIG(status))
            else:
                self._status = os.waitstatus_to_exitcode(status)

    def _is_gone(self) -> bool:
        """All of the command: the process that we started, and what it has left behind."""
        if not self._group_lives() and next(self._rest(), None) is None:
            return True
        if not self._told_leftovers:
            self._told_leftovers = True
            self._say("left", status=self._status)
        return False

    def _group_lives(self) -> bool:
        try:
            if self._group is not None:
                os.killpg(self._group, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True  # somebody is there, as another user
        return True

    def _rest(self) -> Iterator[int]:
        """Our children: the command, and orphans that it left and that have not become daemons."""
        me, session = os.getpid(), os.getsid(0)
        for pid, parent, theirs, state in _processes():
            if parent == me and theirs == session and state not in "ZX":
                yield pid

    def _say(self, what: str, **facts: object) -> None:
        with contextlib.suppress(OSError):  # `holdfast run` is gone, and then nobody wants to know
            self._orders.send(json.dumps({"what": what, **facts}).encode(), socket.MSG_DONTWAIT)


def _become(
    command: Sequence[str],
    environment: Mapping[str, str],
    signals: Mapping[int, Any],
    guard: int,
    fail: int,
    *,
    takes_terminal: bool,
) -> NoReturn:
    """In the child of the guard: turn into the command, or write the error's number."""
    try:
        os.setpgid(0, 0)
        if takes_terminal:
            give_terminal(os.getpgrp())
        kernel.die_with_parent(signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(1)
        signal.set_wakeup_fd(-1)
        for number, handler in signals.items():
            # Python itself ignores SIGPIPE and SIGXFSZ; no other program expects that.
            keep_ignoring = handler is signal.SIG_IGN and number not in (signal.SIGPIPE, signal.SIGXFSZ)
            with contextlib.suppress(OSError):  # SIGKILL, SIGSTOP
                signal.signal(number, signal.SIG_IGN if keep_ignoring else signal.SIG_DFL)
        os.execvpe(command[0], list(command), environment)  # noqa: S606  (what the user asked us to run)
    except OSError as error:
        os.write(fail, str(error.errno).encode())
    finally:
        os._exit(127)


def _processes() -> Iterator[tuple[int, int, int, str]]:
    """Every process: pid, parent, session, state."""
    try:
        names = os.listdir("/proc")
    except OSError:  # no Linux: what is left of the process group is all that can be seen
        return
    for name in names:
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    after_name = file.read().rpartition(b")")[2].split()
            except OSError:
                continue  # it has just ended
            yield int(name), int(after_name[1]), int(after_name[3]), after_name[0].decode()
