"""The end of the process: leases that no code can use any more are released, so that no waiter waits for their ttl.

When `release_leases` runs, non-daemon threads have been joined. Daemon threads, ours included, still run, but from
Python 3.12 on no thread can be started. The thread that ends the process and threads that have finished cannot run code
under their leases any more, and neither can the tasks of a loop that does not run.

A process ends in one of these ways:

    return, sys.exit(), an unhandled exception     `atexit` calls `release_leases`
    a child of multiprocessing                     it skips `atexit` up to Python 3.12, but calls the finalizers
                                                   of multiprocessing.util
    os._exit(), a signal without a handler         nothing is called: leases expire with their ttl

`exit_on` turns such a signal into SystemExit.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.core.events import logger
from holdfast.core.ports import WorksWithoutLoop
from holdfast.errors import ConfigurationError, UsageError
from holdfast.runtimes import system
from holdfast.runtimes.threads import run_sync

if TYPE_CHECKING:
    from holdfast.core.engine import Engine
    from holdfast.core.ports import Backend
    from holdfast.core.tickets import Claim

EXIT_MAX = 2.0  # seconds for all clients together
_SENT_AGAIN = 0.01  # seconds after which a signal that had no effect is sent again

# multiprocessing.util runs finalizers with a negative priority after it has joined the child processes, which may work
# under a lease of this one.
_AFTER_CHILDREN = -100


Reopen = Callable[[], "Backend"]

# Each with the function that opens its store without a loop, if its own backend needs one.
_engines: weakref.WeakKeyDictionary[Engine[Any], Reopen | None] = weakref.WeakKeyDictionary()
_is_exiting_in = 0  # the process that has got a signal of `exit_on`
_registered_in = 0  # the process that calls `release_leases` at its end


def exit_on(*signals: int) -> None:
    """End the process at these signals as `sys.exit()` does: each `with` block is left, and its lease is released.

    Without a handler, SIGTERM ends a process without any clean-up, and its leases expire with their ttl. The handler
    raises SystemExit(128 + number) in the main thread: the exit status after SIGTERM is 143, as in a shell. A second
    signal ends the process at once, without clean-up. A signal that this process ignores, as under nohup, stays
    ignored.

    Do not call it in a server that has handlers of its own, such as gunicorn, uvicorn or Celery: it ends gracefully.

    Args:
        signals: `signal.SIGTERM`, for example.

    Raises:
        ConfigurationError: an argument is not the number of a signal that can be handled; or there is none.
        UsageError: this is not the main thread, or one of the signals has a handler already.
    """
    if not signals:
        raise ConfigurationError("exit_on() needs a signal: exit_on(signal.SIGTERM)")
    checked = [_check_signal(number) for number in signals]
    if threading.current_thread() is not threading.main_thread():
        raise UsageError("exit_on() belongs into the main thread: Python runs signal handlers there, and nowhere else")
    for number in checked:
        _check_handler(number)
    for number in checked:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _exit)


def _check_signal(number: object) -> signal.Signals:
    uncaught = {getattr(signal, name, None) for name in ("SIGKILL", "SIGSTOP")}
    if isinstance(number, int) and not isinstance(number, bool):
        if number in uncaught:
            raise ConfigurationError(f"exit_on() cannot handle {signal.Signals(number).name}: no process can")
        if number in signal.valid_signals():
            return signal.Signals(number)
    raise ConfigurationError(f"exit_on() takes signals, such as signal.SIGTERM, not {number!r}")


def _check_handler(number: signal.Signals) -> None:
    handler = signal.getsignal(number)
    if handler not in (signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler, _exit):
        name = "one that was not set by Python" if handler is None else getattr(handler, "__qualname__", repr(handler))
        raise UsageError(
            f"{number.name} has a handler already ({name}), which exit_on() would replace: a server such as gunicorn, "
            f"uvicorn or Celery ends gracefully by itself. To replace it: signal.signal(signal.{number.name}, "
            "signal.SIG_DFL), then exit_on()"
        )


def _exit(number: int, _frame: object) -> NoReturn:
    global _is_exiting_in
    if _is_exiting_in == os.getpid():
        os._exit(128 + number)
    _is_exiting_in = os.getpid()
    raise_in_handler(SystemExit(128 + number), number, _forget_exit)


def _forget_exit() -> None:
    global _is_exiting_in
    _is_exiting_in = 0


def raise_in_handler(error: BaseException, number: int, forget: Callable[[], object]) -> NoReturn:
    """Raise an error in the handler of a signal, and again if Python ignores it.

    Python ignores an exception in a finaliser and in the callback of a weak reference. If the signal has interrupted
    one of these, another thread calls `forget` and sends the signal again soon after that.
    """
    report = sys.unraisablehook

    def send_again() -> None:
        time.sleep(_SENT_AGAIN)
        forget()
        os.kill(os.getpid(), number)

    def repeat_if_ignored(unraisable: Any) -> None:
        if unraisable.exc_value is error:
            sys.unraisablehook = report
            _thread.start_new_thread(send_again, ())  # not threading.Thread, whose start waits for another thread
        else:
            report(unraisable)

    sys.unraisablehook = repeat_if_ignored
    raise error


def release_at_exit(engine: Engine[Any], reopen: Reopen | None = None) -> None:
    """Release the leases of this engine at the end of the process, if their threads or tasks have ended by then."""
    global _registered_in
    _engines[engine] = reopen
    if _registered_in != os.getpid():
        _registered_in = os.getpid()
        _register()


def _register() -> None:
    """Have `release_leases` called at the end of this process."""
    util: Any = sys.modules.get("multiprocessing.util")
    if util is None:  # its own exit function is then registered later, and so runs before this one
        atexit.register(release_leases)
        return
    util.Finalize(None, release_leases, exitpriority=_AFTER_CHILDREN)
    # A child removes all finalizers when it has unpickled its arguments, which may have been clients.
    util.register_after_fork(
        release_leases, lambda function: util.Finalize(None, function, exitpriority=_AFTER_CHILDREN)
    )


def release_leases() -> None:
    """End the leases of all clients whose threads or tasks have ended, then release them, within EXIT_MAX in all."""
    system.process_ends = True
    until = system.now() + EXIT_MAX
    ended: list[tuple[Engine[Any], Reopen | None, list[Claim]]] = []
    for engine, reopen in _all_engines():
        tickets = engine.end_leases()
        if tickets:
            ended.append((engine, reopen, tickets))
    for number, (engine, reopen, tickets) in enumerate(ended):
        now = system.now()
        # A server that does not answer must leave time for the others.
        unanswered = _release(engine, reopen, tickets, now + max(0.0, until - now) / (len(ended) - number))
        if unanswered:
            url = engine.backend.url
            logger().warning("%d lease(s) on %s were not released at exit: they expire with their ttl", unanswered, url)


def _release(engine: Engine[Any], reopen: Reopen | None, tickets: list[Claim], deadline: float) -> int:
    """Release tickets. Returns how many got no answer."""
    try:
        if isinstance(engine.backend, WorksWithoutLoop):
            engine.backend.without_loop()
            reopen = None
        if reopen is None:
            return run_sync(engine.release_ended(tickets, deadline))
        backend = reopen()
        unanswered = run_sync(engine.release_ended(tickets, deadline, backend))
        if not unanswered:
            run_sync(backend.close())
    except Exception as error:  # the process ends in any case, and the ttl ends the leases
        logger().info("leases were not released at exit: %r", error)
        return len(tickets)
    return unanswered


def _all_engines() -> list[tuple[Engine[Any], Reopen | None]]:
    for _ in range(100):
        with contextlib.suppress(RuntimeError):  # a daemon thread has created a client in the meantime
            return list(_engines.items())
    return []


def _in_forked_child() -> None:
    """The leases belong to the parent, so this process does not release them at its end."""
    global _engines
    _engines = weakref.WeakKeyDictionary()


system.after_fork_in_child(_in_forked_child)
