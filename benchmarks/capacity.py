"""The capacity of one server: the cost of pairs, hand-overs, held leases, waiters and connections, for each store.

    python -m benchmarks.capacity [--only redis,etcd] [--seconds 5] [--leases 100000] [--waiters 10000] [--fleet 10000]

The server runs on the last core of the machine and the clients on the others. Each measure has a new server. The cost
is the processor time of the server from /proc, with all of its child processes, so the speed of the clients does not
matter: a server that uses 50 µs for a pair carries 20,000 pairs per second and core. All clients are asyncio clients,
each with its own connections. docs/capacity.md explains the figures.
"""

from __future__ import annotations

import argparse
import asyncio
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
from benchmarks.capacity_stores import STORES, Store
from benchmarks.machine import describe

CLIENTS = 8  # of pairs and hand-overs
CROWD_CLIENTS = 10  # of waiters and leases
LEASE_TTL = 60.0
FLEET_PERIOD = 10.0  # seconds between two pairs of a client of the fleet
FLEET_PROCESSES = 4
WARM_UP = 3.0  # seconds: connections are open, and a virtual machine of the server has compiled its code
LEASE_TASKS = 2  # of each client, while leases are acquired
SETTLE = 3.0  # seconds without a measurement after the last client is ready
_PATIENCE = 200.0  # seconds for one measure


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
Measure = Callable[[Server, Options], Awaitable[Figures]]


async def pairs(server: Server, options: Options) -> Figures:
    """Each client acquires and releases a lock of its own."""
    return await _turns(server, options, [f"pair-{number}" for number in range(CLIENTS)], "pair")


async def hand_overs(server: Server, options: Options) -> Figures:
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


async def leases(server: Server, options: Options) -> Figures:
    """Some clients hold many leases: bytes on the server, and the cost of renewals."""
    clients = [holdfast.AsyncClient(server.url, ttl=LEASE_TTL) for _ in range(CROWD_CLIENTS)]
    for client in clients:
        async with client.lock("warm-up"):
            pass
    size, memory, started = server.store.size(server.url), _resident(), time.monotonic()

    async def take(client: holdfast.AsyncClient, part: int) -> list[holdfast.AsyncLease]:
        names = range(part, options.leases, CROWD_CLIENTS * LEASE_TASKS)
        acquired = [await client.lock(f"order:{number:08}").acquire() for number in names]
        return [lease for lease in acquired if lease is not None]

    parts = await asyncio.gather(*(take(client, part) for part, client in enumerate(clients * LEASE_TASKS)))
    held = [lease for part in parts for lease in part]
    took, memory = time.monotonic() - started, _resident() - memory
    await asyncio.sleep(SETTLE)
    size = server.store.size(server.url) - size
    server_cpu, own_cpu, started = server.cpu(), time.process_time(), time.monotonic()
    await asyncio.sleep(LEASE_TTL * 2 / 3)  # each lease is renewed twice
    window = time.monotonic() - started
    return {
        "leases": len(held),
        "leases_acquire": took,
        "lease_bytes": size / len(held),
        "lease_memory": memory / len(held),
        "renewal_cpu": (server.cpu() - server_cpu) / window * LEASE_TTL / 3 / len(held),
        "leases_share": (server.cpu() - server_cpu) / window,
        "leases_client_share": (time.process_time() - own_cpu) / window,
        "leases_lost": sum(lease.lost for lease in held),
    }


async def waiters(server: Server, options: Options) -> Figures:
    """Many tasks wait for one lock: what the server pays while nothing happens, and for each hand-over."""
    turns = itertools.count()  # reading it counts as one
    clients = [holdfast.AsyncClient(server.url) for _ in range(CROWD_CLIENTS)]
    holder = await clients[0].lock("crowd", ttl=300).acquire()  # it is not lost while 10,000 tasks queue
    assert holder is not None

    async def wait(client: holdfast.AsyncClient) -> None:
        async with client.lock("crowd"):
            next(turns)

    tasks = [asyncio.create_task(wait(clients[number % CROWD_CLIENTS])) for number in range(options.waiters)]
    if server.store.shows_waiters:
        while len((await clients[0].inspect("crowd")).waiters) < options.waiters:  # noqa: ASYNC110 (no event tells)
            await asyncio.sleep(0.5)
    await asyncio.sleep(SETTLE)
    cpu, at = server.cpu(), time.monotonic()
    await asyncio.sleep(2 * options.seconds)
    share = (server.cpu() - cpu) / (time.monotonic() - at)
    first, cpu, at = next(turns), server.cpu(), time.monotonic()
    await holder.release()
    await asyncio.sleep(options.seconds)
    number, cpu, window = next(turns) - first - 1, server.cpu() - cpu, time.monotonic() - at
    return {
        "waiters": sum(not task.done() for task in tasks) + number,
        "waiters_share": share,
        "crowd_rate": number / window,
        "crowd_cpu": cpu / max(number, 1),
    }


async def fleet(server: Server, options: Options) -> Figures:
    """Clients with a connection each; every one acquires and releases a lock of its own from time to time."""
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
    for end in ends:
        await asyncio.to_thread(end.recv)  # all of its clients are connected
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
        "fleet": options.fleet,
        "fleet_connections": connections,
        "fleet_share": cpu / seconds,
        "fleet_rate": len(durations) / seconds,
        "fleet_p50": durations[len(durations) // 2],
        "fleet_p99": durations[len(durations) * 99 // 100],
    }


def _run_part(url: str, part: int, clients: int, end: Connection) -> None:
    asyncio.run(_part_of_fleet(url, part, clients, end))


async def _part_of_fleet(url: str, part: int, clients: int, end: Connection) -> None:
    durations: list[float] = []

    async def live(number: int) -> None:
        client = holdfast.AsyncClient(url)
        name = f"fleet-{part}-{number}"
        async with client.lock(name):
            pass
        ready.release()
        await asyncio.sleep(random.uniform(0, FLEET_PERIOD))  # noqa: S311  (no secret)
        while True:
            started = time.monotonic()
            async with client.lock(name):
                pass
            durations.append(time.monotonic() - started)
            await asyncio.sleep(FLEET_PERIOD)

    ready = asyncio.Semaphore(0)
    tasks = []
    for number in range(clients):  # one after the other: 10,000 connections at once overflow the backlog of a server
        tasks.append(asyncio.create_task(live(number)))
        await ready.acquire()
    end.send("ready")
    await asyncio.to_thread(end.recv)
    durations.clear()
    await asyncio.to_thread(end.recv)
    end.send(list(durations))
    await asyncio.gather(*tasks)


def _resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# ── one measure, in a process of its own ─────────────────────────────────────────────────────────────────────────────


def run(store: Store, measure: Measure, options: Options) -> Figures:
    """Return the figures of one measure on a new server."""
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="holdfast-capacity-") as folder, store.run(folder, cores[-1:]) as url:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        target = context.Process(target=_measure, args=(Server(store, url), measure, options, cores, theirs))
        target.start()
        theirs.close()
        try:
            if not ours.poll(_PATIENCE):
                return {}
            return dict(ours.recv())
        except EOFError:  # it failed, and has printed its error
            return {}
        finally:
            target.kill()  # with its waiters: nothing on this server is needed any more
            target.join()


def _measure(server: Server, measure: Measure, options: Options, cores: list[int], end: Connection) -> None:
    os.sched_setaffinity(0, cores[:-1] or cores)

    async def send_figures() -> None:
        end.send(await measure(server, options))
        end.recv()  # until this process is killed: closing clients with thousands of leases takes long

    asyncio.run(send_figures())


MEASURES: dict[str, Measure] = {
    "pairs": pairs,
    "hand_overs": hand_overs,
    "leases": leases,
    "waiters": waiters,
    "fleet": fleet,
}


def main() -> None:
    """Print each figure as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default=",".join(STORES), help="stores, with commas between them")
    parser.add_argument("--measures", default=",".join(MEASURES), help="measures, with commas between them")
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of each window")
    parser.add_argument("--leases", type=int, default=100_000)
    parser.add_argument("--waiters", type=int, default=10_000)
    parser.add_argument("--fleet", type=int, default=10_000, help="clients of the fleet, each with a connection")
    arguments = parser.parse_args()
    stores = _chosen(parser, "--only", arguments.only, STORES)
    measures = _chosen(parser, "--measures", arguments.measures, MEASURES)
    options = Options(arguments.seconds, arguments.leases, arguments.waiters, arguments.fleet)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    machine = describe(sorted(os.sched_getaffinity(0)), None, [])
    for name in ("CPU", "kernel", "Python", "load before", "date"):
        print(f"{name}: {machine[name]}")
    for name in stores:
        store = STORES[name]
        print(f"\n{name}: {store.version()}")
        for measure in measures:
            if measure == "fleet" and not store.carries_fleet:
                continue
            figures = run(store, MEASURES[measure], options)
            if not figures:
                print(f"  {measure}: no figures in {_PATIENCE:g} s", file=sys.stderr)
            for key, value in figures.items():
                print(f"  {key:22} {_text(key, value)}", flush=True)


def _chosen(parser: argparse.ArgumentParser, option: str, text: str, known: Collection[str]) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - set(known):
        parser.error(f"{option}: unknown: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return names


def _text(key: str, value: float) -> str:
    if key.endswith("_cpu"):
        return f"{value * 1e6:,.0f} µs, {1 / value:,.0f} per second and core"
    if key.endswith("share"):
        return f"{value:.1%} of a core"
    if key.endswith(("_p50", "_p99")):
        return f"{value * 1e3:.1f} ms"
    return f"{value:,.1f}"


if __name__ == "__main__":
    main()
