"""Threads of several processes request the same lock continuously: what a client with many threads costs the others."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Mapping
from multiprocessing.connection import Connection

from benchmarks import figures
from benchmarks.contender import Arena, Contender
from benchmarks.figures import Turn
from benchmarks.measure import Column, Effort, Figures, Measure, Panel, Setting
from benchmarks.measures.contended import take_turns
from benchmarks.processes import ProcessGroup, cpu_of, ready, sleep_until

THREADS = 8
# The peers of the other settings: one that polls and one that is woken. All of them would take too long.
COMPARED = ("redis-py Lock", "python-redis-lock")
AWAY = 0.0005  # seconds that a request takes to arrive, as a network with 0.25 ms each way delays a round trip


def run(contender: Contender, numbers: Mapping[str, float], location: str) -> Figures:
    """Return the figures of one window. Each process has the given number of threads; a lone first process has one."""
    processes, threads, seconds = int(numbers["processes"]), int(numbers["threads"]), numbers["seconds"]
    thread_counts = [threads] * processes
    if numbers.get("lone"):
        thread_counts.insert(0, 1)
    stats = contender.server.stats(location) if contender.server is not None else None
    server = stats.pid() if stats is not None else None

    def part(process: int, end: Connection) -> list[array[float]]:
        assert contender.threads is not None
        locks = contender.threads(location)
        with locks.lock("wanted"):  # warm-up
            pass
        begin = ready(end)
        times_of_threads: list[array[float]] = [array("d") for _ in range(thread_counts[process])]

        def work(number: int) -> None:
            lock = locks.lock("wanted")
            sleep_until(begin)
            times_of_threads[number] = take_turns(lock, begin + seconds, 0.0)

        workers = [threading.Thread(target=work, args=(number,)) for number in range(thread_counts[process])]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        locks.close()
        return times_of_threads

    with ProcessGroup(len(thread_counts), part) as group:
        begin = group.start()
        before = stats.commands() if stats is not None else 0.0
        cpu_before = cpu_of(server) if server is not None else 0.0
        times_of_processes = group.receive()
    commands = stats.commands() - before if stats is not None else 0.0
    cpu = cpu_of(server) - cpu_before if server is not None else 0.0
    if stats is not None:
        stats.close()
    turns = [
        Turn(process, *times[at : at + 3])
        for process, of_threads in enumerate(times_of_processes)
        for times in of_threads
        for at in range(0, len(times), 3)
    ]
    judged = _judge(turns, len(thread_counts), begin, begin + seconds, is_lone=bool(numbers.get("lone")))
    if stats is not None and turns:
        judged |= {"commands": commands / len(turns), "server_cpu": cpu / len(turns)}
    return judged


def _judge(turns: list[Turn], processes: int, begin: float, end: float, *, is_lone: bool) -> Figures:
    turns = figures.in_order(turns)
    inside = [turn for turn in turns if begin <= turn.acquired <= end]
    judged_turns = [turn for turn in turns if turn.requested <= end and not (is_lone and turn.client)]
    waits = [turn.acquired - turn.requested for turn in judged_turns]
    counts = [0] * processes
    for turn in inside:
        counts[turn.client] += 1
    judged: Figures = {
        "overlaps": figures.overlaps(turns),
        "turns": len(inside) / (end - begin),
        "wait_p99": figures.quantile(waits, 0.99),
    }
    if processes > 1 and not is_lone:
        judged["jain"] = figures.jain(counts)
    return judged


def _settings(effort: Effort) -> list[Setting]:
    seconds = effort.contended_seconds
    return [
        Setting("1x8", f"{THREADS} threads of one process", {"processes": 1, "threads": THREADS, "seconds": seconds}),
        Setting("4x8", "4 processes with 8 threads", {"processes": 4, "threads": THREADS, "seconds": seconds}),
        Setting("8x1", "8 processes with one thread", {"processes": 8, "threads": 1, "seconds": seconds}),
        Setting(
            "lone",
            "a process with one thread, of which p99 is, beside one with 8",
            {"processes": 1, "threads": THREADS, "seconds": seconds, "lone": 1},
        ),
        Setting(
            "4x8-away",
            "4 processes with 8 threads, every request takes 0.5 ms to arrive",
            {"processes": 4, "threads": THREADS, "seconds": seconds, "delay": AWAY},
        ),
    ]


def _cannot(contender: Contender, setting: Setting) -> str | None:
    if contender.arena is not Arena.REDIS or contender.threads is None:
        return "is not asked of it"
    if contender.waits is None:
        return "cannot wait"
    is_for_all = setting.slug in {"1x8", "4x8"}
    return None if is_for_all or contender.ours or contender.name in COMPARED else "is not asked of it"


MEASURE = Measure(
    name="threads",
    title="Threads of several processes: turns, waits and fairness",
    explains=(
        "turns: per second, back to back; more is better. wait p99: for an acquire, in ms. Jain: over the turns of "
        "processes. commands: that the server runs for one turn, those within scripts included. server: its processor "
        "time for one turn, in µs. Checked throughout: no two turns overlap."
    ),
    settings=_settings,
    run=run,
    cannot=_cannot,
    columns=(
        Column("turns", "turns\n/s", plain=True),
        Column("wait_p99", "wait\np99", scale=1e3),
        Column("commands", "com-\nmands"),
        Column("server_cpu", "server\nµs", scale=1e6),
        Column("jain", "Jain"),
    ),
    panels=(Panel("turns per second", "turns"),),
    ratio_of="turns",
    cores=lambda _: "all",
    rounds=lambda effort: min(effort.rounds, effort.contended_rounds),
)
