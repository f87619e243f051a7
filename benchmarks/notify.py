"""The cost of a hand-over on PostgreSQL, in round trips of NOTIFY: `python -m benchmarks.notify`.

A server wakes every session of the database that listens, for any payload. So a round trip is measured with as many
other listening sessions as there are waiting clients; alone it is shorter, but that does not occur with locks.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
from itertools import pairwise
from multiprocessing.synchronize import Event, Semaphore
from typing import Any

import psycopg

import holdfast
from benchmarks.servers.postgresql import Postgresql

WAITERS = 64
HOLD = 0.002  # seconds
TURNS = 10  # of each waiter
ROUND_TRIPS = 300
ROUNDS = 3
PATIENCE = 30.0  # seconds
LIMIT = 3.0  # round trips


def main() -> int:
    """Measure, and print the figures. Returns 0 if the claim holds, else 1."""
    parser = argparse.ArgumentParser(description="What a hand-over on PostgreSQL costs, in round trips of NOTIFY.")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    kept = True
    with tempfile.TemporaryDirectory() as folder, Postgresql().run(folder, sorted(os.sched_getaffinity(0))) as url:
        with holdfast.Client(url) as client, client.lock("the first use makes the tables"):
            pass
        for clients in (1, 8):
            ratios = []
            for _ in range(rounds):
                alone, beside = round_trip(url, 0), round_trip(url, clients)
                gap = hand_over(url, clients)
                ratios.append(gap / beside)
                print(
                    f"{WAITERS} waiters in {clients} process(es): hand-over {gap * 1e3:.2f} ms; NOTIFY round trip "
                    f"{beside * 1e3:.2f} ms with {clients} more listening ({gap / beside:.2f} ×), "
                    f"{alone * 1e3:.2f} ms alone ({gap / alone:.2f} ×)",
                    flush=True,
                )
            kept = kept and statistics.median(ratios) <= LIMIT
    print(f"at most {LIMIT:g} × a round trip beside as many listening sessions: {'yes' if kept else 'NO'}")
    return 0 if kept else 1


def round_trip(url: str, listening: int) -> float:
    """Return the median seconds from a NOTIFY to the answer of another process."""
    ready, stop = multiprocessing.Semaphore(0), multiprocessing.Event()
    helpers = [multiprocessing.Process(target=_listen, args=(url, ready, stop)) for _ in range(listening)]
    helpers.append(multiprocessing.Process(target=_answer, args=(url, ready)))
    for helper in helpers:
        helper.start()
    for _ in helpers:
        ready.acquire(timeout=PATIENCE)
    taken = []
    with psycopg.connect(url, autocommit=True) as notifier, psycopg.connect(url, autocommit=True) as listener:
        listener.execute("LISTEN pong")
        answers = listener.notifies(timeout=PATIENCE)
        for _ in range(ROUND_TRIPS):
            began = time.perf_counter()
            notifier.execute("NOTIFY ping, 'again'")
            next(answers)
            taken.append(time.perf_counter() - began)
        notifier.execute("NOTIFY ping, 'end'")
        answers.close()  # it uses the connection until then
    stop.set()
    for helper in helpers:
        helper.join(PATIENCE)
    return statistics.median(taken)


def hand_over(url: str, clients: int) -> float:
    """Return the median seconds from the end of one turn to the beginning of the next."""
    results: multiprocessing.Queue[list[tuple[float, float]]] = multiprocessing.Queue()
    start = multiprocessing.Barrier(clients)
    processes = [
        multiprocessing.Process(target=_wait_in_line, args=(url, WAITERS // clients, start, results))
        for _ in range(clients)
    ]
    for process in processes:
        process.start()
    turns = sorted(turn for _ in processes for turn in results.get(timeout=4 * PATIENCE))
    for process in processes:
        process.join(PATIENCE)
    gaps = [after[0] - before[1] for before, after in pairwise(turns)]
    return statistics.median(gaps[len(gaps) // 4 : 3 * len(gaps) // 4])


def _listen(url: str, ready: Semaphore, stop: Event) -> None:
    with psycopg.connect(url, autocommit=True) as listener:
        listener.execute("LISTEN another")
        ready.release()
        while not stop.is_set():
            list(listener.notifies(timeout=0.2))


def _answer(url: str, ready: Semaphore) -> None:
    with psycopg.connect(url, autocommit=True) as listener, psycopg.connect(url, autocommit=True) as notifier:
        listener.execute("LISTEN ping")
        ready.release()
        with contextlib.closing(listener.notifies(timeout=PATIENCE)) as questions:
            for question in questions:
                if question.payload == "end":
                    return
                notifier.execute("NOTIFY pong")


def _wait_in_line(url: str, count: int, start: Any, results: Any) -> None:
    turns: list[tuple[float, float]] = []

    def take_turns() -> None:
        lock = client.lock("wanted", timeout=4 * PATIENCE)
        for _ in range(TURNS):
            with lock:
                began = time.monotonic()
                time.sleep(HOLD)
                turns.append((began, time.monotonic()))

    with holdfast.Client(url, local_handover="no") as client:
        threads = [threading.Thread(target=take_turns) for _ in range(count)]
        start.wait()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    results.put(turns)


if __name__ == "__main__":
    sys.exit(main())
