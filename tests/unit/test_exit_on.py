"""exit_on: which arguments and calls are refused. tests/integration/test_signals.py sends the signals."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

import holdfast


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Restore the previous handlers after the test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("signals", "message"),
    [
        ((), r"exit_on\(\) needs a signal"),
        (("SIGTERM",), "takes signals, such as signal.SIGTERM, not 'SIGTERM'"),
        ((True,), "takes signals, such as signal.SIGTERM, not True"),
        ((0,), "takes signals, such as signal.SIGTERM, not 0"),
        ((signal.SIGTERM, 9999), "takes signals, such as signal.SIGTERM, not 9999"),
        ((signal.SIGKILL,), "cannot handle SIGKILL: no process can"),
        ((signal.SIGSTOP,), "cannot handle SIGSTOP: no process can"),
    ],
)
def test_an_argument_that_is_no_signal_is_refused(signals: tuple[int, ...], message: str) -> None:
    with pytest.raises(holdfast.ConfigurationError, match=message):
        holdfast.exit_on(*signals)

    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_another_thread_than_the_main_one_is_refused() -> None:
    refused: list[str] = []

    def call() -> None:
        try:
            holdfast.exit_on(signal.SIGTERM)
        except holdfast.UsageError as error:
            refused.append(str(error))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()

    assert "main thread" in refused[0]


def test_an_existing_handler_is_kept() -> None:
    def graceful(*_: object) -> None: ...

    signal.signal(signal.SIGTERM, graceful)

    with pytest.raises(holdfast.UsageError, match=r"SIGTERM has a handler already \(.*graceful\)"):
        holdfast.exit_on(signal.SIGHUP, signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is graceful
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    holdfast.exit_on(signal.SIGHUP)

    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_it_may_be_called_again_and_replaces_the_handlers_of_python() -> None:
    holdfast.exit_on(signal.SIGTERM, signal.SIGINT)
    holdfast.exit_on(signal.SIGTERM)

    with pytest.raises(SystemExit) as ended:
        signal.raise_signal(signal.SIGINT)
    assert ended.value.code == 130
