"""Simulate Windows: hide modules and attributes that only POSIX systems have.

Run as `python no_posix.py DRIVERS PROGRAM …`. DRIVERS are the modules of the drivers that the program uses, separated
by commas, or "". PROGRAM is Python source text, or `-m MODULE`. The standard library and the drivers are imported
first, because they select system calls at import. So these names are missing for holdfast only.
"""

from __future__ import annotations

import importlib
import os
import runpy
import select
import signal
import socket
import stat
import sys
import time
from collections.abc import Sequence
from typing import Any

LIBRARY = ("asyncio", "logging.handlers", "multiprocessing.util", "random", "ssl", "subprocess", "tempfile")
MODULES = ("fcntl", "grp", "pwd", "resource", "syslog", "termios", "tty", "pty", "curses", "readline")
ATTRIBUTES: dict[Any, tuple[str, ...]] = {
    os: (
        *("fork", "forkpty", "register_at_fork", "mkfifo", "killpg", "getpgid", "setsid", "uname", "nice"),
        *("getuid", "geteuid", "getgid", "getegid", "getloadavg", "fchmod", "fchown", "chown", "sched_getaffinity"),
        *("set_blocking", "waitid", "WNOHANG", "O_CLOEXEC", "O_NONBLOCK", "O_NOFOLLOW", "O_DIRECTORY"),
        *("eventfd", "memfd_create", "pidfd_open", "posix_spawn", "tcgetpgrp", "tcsetpgrp", "ctermid"),
    ),
    signal: (
        *("SIGHUP", "SIGKILL", "SIGSTOP", "SIGCONT", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGUSR1", "SIGUSR2", "SIGQUIT"),
        *(
            "SIGPIPE",
            "SIGALRM",
            "SIGCHLD",
            "SIGXFSZ",
            "alarm",
            "setitimer",
            "pthread_sigmask",
            "sigwait",
            "siginterrupt",
        ),
    ),
    select: ("poll", "epoll", "POLLIN", "POLLOUT", "POLLNVAL"),
    socket: ("AF_UNIX", "MSG_DONTWAIT", "TCP_USER_TIMEOUT", "SO_REUSEPORT", "send_fds", "recv_fds"),
    time: ("clock_gettime", "CLOCK_MONOTONIC", "CLOCK_BOOTTIME", "clock_gettime_ns", "pthread_getcpuclockid"),
}


def hide(drivers: Sequence[str]) -> None:
    for name in (*LIBRARY, *drivers):
        importlib.import_module(name)
    for module in MODULES:
        sys.modules[module] = None  # type: ignore[assignment]  # makes an import raise ModuleNotFoundError
    for owner, names in ATTRIBUTES.items():
        for name in names:
            if hasattr(owner, name):
                delattr(owner, name)
    socket.socketpair = socketpair  # type: ignore[assignment]  # it takes fewer arguments
    fstat = os.fstat

    def fstat_of_files(descriptor: int) -> os.stat_result:
        status = fstat(descriptor)
        if stat.S_ISSOCK(status.st_mode):
            raise OSError(9, "a socket has no descriptor of the C library")
        return status

    os.fstat = fstat_of_files  # type: ignore[assignment]  # its parameter has another name


def socketpair(*_: object) -> tuple[socket.socket, socket.socket]:
    """A pair of sockets over TCP, as the standard library makes it on Windows."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        client = socket.socket()
        client.connect(listener.getsockname())
        server, _address = listener.accept()
        return server, client


def main() -> None:
    hide(sys.argv[1].split(",") if sys.argv[1] else ())
    sys.argv = sys.argv[2:]
    if sys.argv[0] == "-m":
        sys.argv = sys.argv[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        exec(compile(sys.argv[0], "program", "exec"), {"__name__": "__main__"})  # noqa: S102


if __name__ == "__main__":
    main()
