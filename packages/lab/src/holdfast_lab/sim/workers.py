"""Worker processes that run one function call at a time. The calls and their results are sent over pipes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess


class Call(NamedTuple):
    """A call of a function of a module, with arguments that can be pickled."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


def usable_cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def call_in_workers(calls: Iterable[Call], workers: int) -> Generator[tuple[int, Any]]:
    """Yield the number and the result of each call, in the order in which the calls end.

    A call is taken from `calls` when a worker is free for it, so never more than `workers` calls have begun without
    their results. Close the generator to end it early: calls in progress are then given up.
    """
    numbered = enumerate(calls)
    busy: dict[Connection, int] = {}
    with _started(workers) as pipes:
        free: Sequence[Connection] = pipes
        while True:
            for pipe, (number, call) in zip(free, numbered, strict=False):
                pipe.send(call)
                busy[pipe] = number
            if not busy:
                return
            free = [pipe for pipe in wait(list(busy)) if isinstance(pipe, Connection)]
            results = [(busy.pop(pipe), _receive(pipe)) for pipe in free]
            yield from results


def _receive(pipe: Connection) -> Any:
    try:
        return pipe.recv()
    except EOFError:
        raise RuntimeError("a process of the search has died; its output is above") from None


@contextmanager
def _started(workers: int) -> Iterator[list[Connection]]:
    """Start worker processes; all are terminated at the end."""
    context = multiprocessing.get_context("spawn")  # a forked child inherits locks of threads that it does not have
    processes: list[SpawnProcess] = []
    pipes: list[Connection] = []
    try:
        with _no_interrupts():
            for _ in range(workers):
                ours, theirs = context.Pipe()
                pipes.append(ours)
                process = context.Process(target=_work, args=(theirs,), daemon=True)
                process.start()
                processes.append(process)
                theirs.close()
        yield pipes
    finally:
        for pipe in pipes:
            pipe.close()  # a worker that waits for a call ends by itself
        for process in processes:
            process.terminate()
            process.join()


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Workers start with SIGINT ignored: this process handles Ctrl-C and terminates them."""
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # only the main thread may set it; workers then print a traceback at Ctrl-C
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _work(pipe: Connection) -> None:
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    try:
        while True:
            function, arguments = pipe.recv()
            pipe.send(function(*arguments))
    except (EOFError, BrokenPipeError):
        return  # the search has ended


def _exit_with_parent() -> None:
    """End this process when its parent has been killed: a call can take minutes."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
