"""The capacity of one server: the cost of pairs, hand-overs, held leases, waiters and connections, for each store.

    make capacity [ARGS="--only redis,etcd --measures waiters"]      about 20 minutes for all; writes the tables of docs
    python -m benchmarks.capacity [--only redis,etcd] [--seconds 5] [--leases 100000] [--waiters 10000] [--fleet 10000]

The server runs on the last core of the machine and the clients on the others. Each measure has a new server, and a
time limit. The cost is the processor time of the server from /proc, with all of its child processes, so the speed of
the clients does not matter: a server that uses 50 µs for a pair carries 20,000 pairs per second and core. All clients
are asyncio clients, each with its own connections. Waiters and leases are added by steps up to the number that was
asked for, and only as far as the server carries them. docs/capacity.md explains the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Collection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import holdfast
from benchmarks import capacity_pages
from benchmarks.capacity_stores import STORES, Store
from benchmarks.machine import describe

CLIENTS = 8  # of pairs and hand-overs
SHARED_CLIENTS = 10  # clients that all waiters, or all leases, share
STEPS = (1_000, 3_000)  # waiters before the number that was asked for
STEP_MAX = 40.0  # seconds in which the waiters of a step have to be queued
CHUNKS = 20  # of a step: its waiters are started in so many parts, because a server does not queue all at once
FULL_LOAD = 0.85  # of a core of the server or of the clients: there are no further steps
LEASE_TTL = 60.0
LEASES_MAX = 60.0  # seconds in which leases are acquired
LEASE_TASKS = 2  # of each client, while leases are acquired
FLEET_PERIOD = 10.0  # seconds between two pairs of a client of the fleet
FLEET_PROCESSES = 4
FLEET_MAX = 90.0  # seconds in which the clients of the fleet have to be connected
FLEET_AT_ONCE = 8  # clients of a process that connect at the same time; more overflow the backlog of a server
WARM_UP = 3.0  # seconds: connections are open, and a virtual machine of the server has compiled its code
SETTLE = 3.0  # seconds without a measurement after the last client is ready
LIMIT = 180.0  # seconds for one measure
SPARE_FILES = 500  # file descriptors of a process besides those of its clients


class Options(NamedTuple):
    """The extent of the measures."""

    seconds: float
    leases: int
    waiters: int
    fleet: int


class Server(NamedTuple):
    """A running server as the clients see it."""

    store: Store
    url: str

    def cpu(self) -> float:
        return self.store.cpu(self.url)


Figures = dict[str, float]
Report = Callable[[Figures], None]  # for figures that count if the rest does not end in time
Measure = Callable[[Server, Options, Report], Awaitable[Figures]]


async def pairs(server: Server, options: Options, _: Report) -> Figures:
    """Each client acquires and releases a lock of its own."""
    return await _turns(server, options, [f"pair-{number}" for number in range(CLIENTS)], "pair")


async def hand_overs(server: Server, options: Options, _: Report) -> Figures:
    """All clients want the same lock, and release it at once."""
    return await _turns(server, options, ["shared"] * CLIENTS, "hand_over")


async def _turns(server: Server, options: Options, names: list[str], kind: str) -> Figures:
    turns = itertools.count()  # reading it counts as one

    async def repeat(client: holdfast.AsyncClient, name: str) -> None:
        while True:
            async with client.lock(name):
                next(turns)

    clients = [holdfast.AsyncClient(server.url) for _ in names]
    tasks = [asyncio.create_task(repeat(client, name)) for client, name in zip(clients, names, strict=True)]
    await asyncio.sleep(WARM_UP)
    first, cpu, started = next(turns), server.cpu(), time.monotonic()
    await asyncio.sleep(options.seconds)
    number, cpu, took = next(turns) - first - 1, server.cpu() - cpu, time.monotonic() - started
    connections = server.store.connections(server.url) / len(tasks)
    return {f"{kind}_cpu": cpu / number, f"{kind}_rate": number / took, f"{kind}_connections": connections}


async def leases(server: Server, options: Options, _: Report) -> Figures:
    """Some clients hold many leases: bytes on the server, and the cost of renewals.

    It acquires no more of them after LEASES_MAX, or if one is lost because renewals are late.
    """
    clients = [holdfast.AsyncClient(server.url, ttl=LEASE_TTL) for _ in range(SHARED_CLIENTS)]
    for client in clients:
        async with client.lock("warm-up"):
            pass
    size, memory, started = server.store.size(server.url), _resident(), time.monotonic()
    held: list[holdfast.AsyncLease] = []
    failed = 0

    async def take(client: holdfast.AsyncClient, part: int) -> None:
        nonlocal failed
        for number in range(part, options.leases, SHARED_CLIENTS * LEASE_TASKS):
            if time.monotonic() - started > LEASES_MAX or failed or (held and held[0].lost):
                return
            try:
                lease = await client.lock(f"order:{number:08}").acquire()
            except holdfast.HoldfastError:
                failed += 1
                return
            if lease is not None:
                held.append(lease)

    await asyncio.gather(*(take(client, part) for part, client in enumerate(clients * LEASE_TASKS)))
    took, memory = time.monotonic() - started, _resident() - memory
    await asyncio.sleep(SETTLE)
    size = server.store.size(server.url) - size
    share, own_share = await _shares(server, LEASE_TTL / 3)  # each lease is renewed once
    return {
        "leases": len(held),
        "leases_asked": options.leases,
        "leases_acquire": took,
        "lease_bytes": size / len(held),
        "lease_memory": memory / len(held),
        "renewal_cpu": share * LEASE_TTL / 3 / len(held),
        "leases_share": share,
        "leases_client_share": own_share,
        "leases_lost": sum(lease.lost for lease in held),
    }


async def waiters(server: Server, options: Options, report: Report) -> Figures:
    """Many tasks wait for one lock: what the server pays while nothing happens, and for each hand-over."""
    turns = itertools.count()  # reading it counts as one
    failed: list[Exception] = []
    clients = [holdfast.AsyncClient(server.url) for _ in range(SHARED_CLIENTS)]
    watching = holdfast.AsyncClient(server.url)  # its connections are not busy
    holder = await watching.lock("crowd", ttl=LIMIT).acquire()
    assert holder is not None

    async def wait(client: holdfast.AsyncClient) -> None:
        try:
            async with client.lock("crowd"):
                next(turns)
        except holdfast.HoldfastError as error:
            failed.append(error)

    async def queued(number: int, until: float) -> bool:
        """Whether so many wait; it returns when they do, or when one has failed, or at this time."""
        if not server.store.shows_waiters:
            await asyncio.sleep(STEP_MAX / CHUNKS / 4)
            return not failed
        while not failed and time.monotonic() < until:
            with contextlib.suppress(holdfast.BackendError):  # a busy server: ask again
                if len((await watching.inspect("crowd")).waiters) >= number:
                    return True
            await asyncio.sleep(0.1)
        return False

    tasks: list[asyncio.Task[None]] = []
    figures: Figures = {"waiters": 0.0, "waiters_asked": options.waiters}
    for step in [*(step for step in STEPS if step < options.waiters), options.waiters]:
        until = time.monotonic() + STEP_MAX
        is_carried, shares = True, (0.0, 0.0)
        while is_carried and len(tasks) < step:
            more = min(step - len(tasks), max(50, step // CHUNKS))
            tasks += [asyncio.create_task(wait(clients[number % SHARED_CLIENTS])) for number in range(more)]
            is_carried = await queued(len(tasks), until)
        if is_carried:
            await asyncio.sleep(SETTLE)
            shares = await _shares(server, options.seconds)
        if not is_carried or failed:
            reason = str(failed[0]) if failed else f"not queued in {STEP_MAX:g} s"
            print(f"  {step:,} waiters are too many: {reason}", flush=True)
            return figures  # without hand-overs: they would be those of too long a queue
        figures |= {"waiters": step, "waiters_share": shares[0], "waiters_client_share": shares[1]}
        report(figures)
        if max(shares) > FULL_LOAD:
            break
    first, cpu, at = next(turns), server.cpu(), time.monotonic()
    await holder.release()
    await asyncio.sleep(options.seconds)
    number, cpu, window = next(turns) - first - 1, server.cpu() - cpu, time.monotonic() - at
    if number:
        figures |= {"crowd_rate": number / window, "crowd_cpu": cpu / number}
    return figures


async def _shares(server: Server, seconds: float) -> tuple[float, float]:
    """Return what the server and this process use of a core during this time."""
    cpu, own, at = server.cpu(), time.process_time(), time.monotonic()
    await asyncio.sleep(seconds)
    window = time.monotonic() - at
    return (server.cpu() - cpu) / window, (time.process_time() - own) / window


async def fleet(server: Server, options: Options, _: Report) -> Figures:
    """Clients with a connection each; every one acquires and releases a lock of its own from time to time.

    If some are not connected after FLEET_MAX, the others are measured.
    """
    context = multiprocessing.get_context("fork")
    ends: list[Connection] = []
    processes = []
    for part in range(FLEET_PROCESSES):
        ours, theirs = context.Pipe()
        clients = len(range(part, options.fleet, FLEET_PROCESSES))
        processes.append(context.Process(target=_run_part, args=(server.url, part, clients, theirs), daemon=True))
        processes[-1].start()
        theirs.close()
        ends.append(ours)
    connected = sum([await asyncio.to_thread(end.recv) for end in ends])
    await asyncio.sleep(SETTLE)
    cpu, connections = server.cpu(), server.store.connections(server.url)
    for end in ends:
        end.send("measure")
    seconds = 4 * options.seconds
    await asyncio.sleep(seconds)
    cpu = server.cpu() - cpu
    for end in ends:
        end.send("report")
    durations = sorted(duration for end in ends for duration in end.recv())
    for process in processes:
        process.kill()
    return {
        "fleet": connected,
        "fleet_asked": options.fleet,
        "fleet_connections": connections,
        "fleet_share": cpu / seconds,
        "fleet_rate": len(durations) / seconds,
        "fleet_pair_cpu": cpu / max(1, len(durations)),
        "fleet_p50": durations[len(durations) // 2],
        "fleet_p99": durations[len(durations) * 99 // 100],
    }


def _run_part(url: str, part: int, clients: int, end: Connection) -> None:
    asyncio.run(_part_of_fleet(url, part, clients, end))


async def _part_of_fleet(url: str, part: int, clients: int, end: Connection) -> None:
    durations: list[float] = []
    connecting = asyncio.Semaphore(FLEET_AT_ONCE)
    connected = 0
    until = time.monotonic() + FLEET_MAX

    async def live(number: int) -> None:
        nonlocal connected
        name = f"fleet-{part}-{number}"
        async with connecting:
            if time.monotonic() > until:
                return
            client = holdfast.AsyncClient(url)
            async with client.lock(name):
                pass
            connected += 1
        await asyncio.sleep(random.uniform(0, FLEET_PERIOD))  # noqa: S311  (no secret)
        while True:
            started = time.monotonic()
            async with client.lock(name):
                pass
            durations.append(time.monotonic() - started)
            await asyncio.sleep(FLEET_PERIOD)

    tasks = [asyncio.create_task(live(number)) for number in range(clients)]
    while connected < clients and time.monotonic() < until:  # noqa: ASYNC110  (for the progress of all)
        await asyncio.sleep(0.1)
    end.send(connected)
    await asyncio.to_thread(end.recv)
    durations.clear()
    await asyncio.to_thread(end.recv)
    end.send(list(durations))
    await asyncio.gather(*tasks)


def _resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# ── one measure, in a process of its own ─────────────────────────────────────────────────────────────────────────────


def run(store: Store, measure: Measure, options: Options) -> Figures:
    """Return the figures of one measure on a new server; those that it has after LIMIT, if it does not end before."""
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="holdfast-capacity-") as folder, store.run(folder, cores[-1:]) as url:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        target = context.Process(target=_measure, args=(Server(store, url), measure, options, cores, theirs))
        target.start()
        theirs.close()
        figures: Figures = {}
        until = time.monotonic() + LIMIT
        try:
            while ours.poll(max(0.0, until - time.monotonic())):
                figures, is_complete = ours.recv()
                if is_complete:
                    break
        except EOFError:  # it failed, and has printed its error
            pass
        finally:
            target.kill()  # with its waiters: nothing on this server is needed any more
            target.join()
        return figures


def _measure(server: Server, measure: Measure, options: Options, cores: list[int], end: Connection) -> None:
    os.sched_setaffinity(0, cores[:-1] or cores)

    async def send_figures() -> None:
        end.send((await measure(server, options, lambda figures: end.send((dict(figures), False))), True))
        end.recv()  # until this process is killed: closing clients with thousands of leases takes long

    asyncio.run(send_figures())


MEASURES: dict[str, Measure] = {
    "pairs": pairs,
    "hand_overs": hand_overs,
    "waiters": waiters,
    "leases": leases,
    "fleet": fleet,
}
# Seconds that each takes on a machine that is not busy, for the progress.
USUAL = {"pairs": 10.0, "hand_overs": 10.0, "waiters": 45.0, "leases": 75.0, "fleet": 60.0}


def main() -> None:
    """Print each figure as soon as it is known, and write the pages at the end."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default=",".join(STORES), help="stores, with commas between them")
    parser.add_argument("--measures", default=",".join(MEASURES), help="measures, with commas between them")
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of each window")
    parser.add_argument("--leases", type=int, default=100_000)
    parser.add_argument("--waiters", type=int, default=10_000)
    parser.add_argument("--fleet", type=int, default=10_000, help="clients of the fleet, each with a connection")
    parser.add_argument("--publish", action="store_true", help="write the tables of docs/capacity.md and scaling.md")
    arguments = parser.parse_args()
    stores = [name for name in _chosen(parser, "--only", arguments.only, STORES) if _is_here(name)]
    measures = _chosen(parser, "--measures", arguments.measures, MEASURES)
    options = Options(arguments.seconds, arguments.leases, arguments.waiters, _allowed_fleet(arguments.fleet))
    machine = describe(sorted(os.sched_getaffinity(0)), None, [])
    ran = {fact: machine[fact] for fact in ("holdfast", "CPU", "kernel", "Python", "load before", "date")}
    ran["holdfast"] = machine["holdfast"].replace("?", holdfast.__version__)
    for fact, text in ran.items():
        print(f"{fact}: {text}")
    plan = [
        (name, measure) for name in stores for measure in measures if measure != "fleet" or STORES[name].carries_fleet
    ]
    started, data = time.monotonic(), capacity_pages.load()
    for measured, (name, measure) in enumerate(plan):
        left = sum(USUAL[measure] for _, measure in plan[measured:])
        elapsed = time.monotonic() - started
        print(f"\n{elapsed / 60:.1f} min, about {left / 60:.0f} min left: {name}, {measure}", flush=True)
        figures = run(STORES[name], MEASURES[measure], options)
        if figures.get("waiters") and "crowd_cpu" not in figures:
            again = run(STORES[name], waiters, options._replace(waiters=int(figures["waiters"])))
            figures |= {key: again[key] for key in ("crowd_rate", "crowd_cpu") if key in again}
        if not figures:
            print(f"  {measure}: no figures in {LIMIT:g} s", file=sys.stderr)
        for key, value in figures.items():
            print(f"  {key:22} {_text(key, value)}", flush=True)
        if figures:
            version = STORES[name].version() or name
            capacity_pages.add(data, name, measure, version=version, figures=figures, run=ran)
    if arguments.publish:  # an interrupt before this changes nothing
        capacity_pages.write(data)
        print(f"\n{(time.monotonic() - started) / 60:.1f} min; written to docs/capacity.md and docs/scaling.md")


def _is_here(name: str) -> bool:
    if STORES[name].server.version() is not None:
        return True
    print(f"{name}: no {STORES[name].server.program} on this machine, so it is omitted", file=sys.stderr)
    return False


def _allowed_fleet(clients: int) -> int:
    """Raise the limit of open files, and return how many clients it allows: the server has a connection for each."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    allowed = clients if hard == resource.RLIM_INFINITY else min(clients, hard - SPARE_FILES)
    if allowed < clients:
        print(f"fleet: {allowed:,} of {clients:,} clients: a process may open {hard:,} files (ulimit -Hn)")
    return allowed


def _chosen(parser: argparse.ArgumentParser, option: str, text: str, known: Collection[str]) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - set(known):
        parser.error(f"{option}: unknown: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return names


def _text(key: str, value: float) -> str:
    if key.endswith("_cpu"):
        return f"{value * 1e6:,.0f} µs, {1 / value:,.0f} per second and core" if value else "too little to measure"
    if key.endswith("share"):
        return f"{value:.1%} of a core"
    if key.endswith(("_p50", "_p99")):
        return f"{value * 1e3:.1f} ms"
    return f"{value:,.1f}"


if __name__ == "__main__":
    main()
