"""One worker of the demo, as a process of its own: `python -m holdfast.cli.demo.worker`.

The first line on its stdin is its setup as JSON, because a URL may hold a password and the command line is public. Then
come words, one to a line: go, stay (keep the lock at the end of the next turn), end. An end of file means that the
parent is gone, and so are we.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import signal
import sys
import threading

import holdfast
from holdfast.cli.demo.report import Report, What, clock

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


class Orders:
    """What the parent has said so far."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.stay = threading.Event()
        self.end = threading.Event()
        self._rest = b""

    def line(self) -> str:
        """The next line of stdin; without one, the end of this process."""
        # Not sys.stdin: a thread that waits inside it would hold up the interpreter's exit.
        while b"\n" not in self._rest:
            data = os.read(0, 4096)
            if not data:
                os._exit(1)
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def listen(self) -> None:
        while True:
            event: threading.Event = getattr(self, self.line())
            event.set()


def main() -> None:
    _die_with_parent()
    orders = Orders()
    setup = json.loads(orders.line())
    threading.Thread(target=orders.listen, daemon=True).start()
    number: int = setup["number"]
    try:
        with holdfast.Client(setup["url"], ttl=setup["ttl"]) as client:
            lock = client.lock(setup["lock"], meta={"worker": number})
            lock.locked()  # opens the store
            _tell(number, "ready")
            orders.go.wait()
            _take_turns(lock, number, orders)
    except holdfast.HoldfastError as error:
        _tell(number, "failed", text=f"{type(error).__name__}: {error}")
        sys.exit(1)


def _take_turns(lock: holdfast.Lock, number: int, orders: Orders) -> None:
    for turn in itertools.count():
        if orders.end.wait(_rest(turn, number)):
            return
        _tell(number, "asks")
        with lock as lease:
            _tell(number, "got", fence=lease.fence)
            hold = _hold(turn, number)
            is_told = False
            while not orders.end.wait(hold) and orders.stay.is_set():
                if not is_told:
                    _tell(number, "stays")
                    is_told = True
            lease.check()
            _tell(number, "done", fence=lease.fence)


def _hold(turn: int, number: int) -> float:
    """From 0.25 to 0.45 s: irregular to look at, the same in every run."""
    return 0.25 + 0.05 * ((7 * turn + 3 * number) % 5)


def _rest(turn: int, number: int) -> float:
    """From 0.1 to 0.4 s; at first less, to begin with a full queue."""
    return 0.1 + 0.1 * ((5 * turn + 2 * number) % 4) if turn else 0.01 * number


def _tell(worker: int, what: What, *, fence: int = 0, text: str = "") -> None:
    line = Report(worker, what, clock(), fence, text[:1000]).to_line()  # below PIPE_BUF: one write, whole
    try:
        os.write(1, line)
    except BrokenPipeError:
        os._exit(1)


def _die_with_parent() -> None:
    """Where the kernel can see to it. The end of file on stdin does it everywhere, once this process gets to read."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
