"""One worker process of the demo: `python -m holdfast.cli.demo.worker SETUP`. SETUP is JSON.

The URL of the store is in $HOLDFAST_URL, because it may contain a password, and the command line is public. The end of
stdin ends the process. Each event is one JSON line on stdout.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading

import holdfast
from holdfast.cli.demo.history import Event, Kind
from holdfast.runtimes import system

KEEP_FOR = 0.6  # seconds that the victim keeps the lock before it is killed


def main() -> None:
    setup = json.loads(sys.argv[1])
    ended = threading.Event()
    threading.Thread(target=_wait_for_end, args=(ended,), daemon=True).start()
    try:
        with holdfast.Client(ttl=setup["ttl"]) as client:
            lock = client.lock(setup["lock"], meta={"worker": setup["number"]})
            _take_turns(lock, setup["number"], system.now() + setup["keep_after"], ended)
    except holdfast.HoldfastError as error:
        _report(setup["number"], "failed", error=f"{type(error).__name__}: {error}")


def _wait_for_end(ended: threading.Event) -> None:
    os.read(0, 1)
    ended.set()


def _take_turns(lock: holdfast.Lock, number: int, keep_from: float, ended: threading.Event) -> None:
    """Take turns. The durations vary, but are the same in every run. A turn after `keep_from` does not end."""
    for turn in itertools.count():
        if ended.wait(0.1 + 0.1 * ((5 * turn + 2 * number) % 4)):
            return
        requested = system.now()
        with lock as lease:
            _report(number, "acquired", fence=lease.fence, requested=requested)
            ended.wait(0.25 + 0.05 * ((7 * turn + 3 * number) % 5))
            if system.now() >= keep_from and not ended.is_set():
                _report(number, "keeping")
                ended.wait(KEEP_FOR)
                _report(number, "stuck")
                ended.wait()
            lease.check()
            _report(number, "releasing")


def _report(worker: int, kind: Kind, *, fence: int = 0, requested: float = 0.0, error: str = "") -> None:
    event = Event(worker, kind, system.now(), fence, requested, error[:1000])  # below PIPE_BUF: an atomic write
    try:
        os.write(1, json.dumps(event).encode() + b"\n")
    except BrokenPipeError:
        os._exit(1)


if __name__ == "__main__":
    main()
