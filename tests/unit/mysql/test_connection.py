"""Hazard: values that are changed on the way to the server, and answers that are misread or read by another request."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from holdfast.backends.mysql.io.connection import Connection, literal
from holdfast.backends.mysql.io.errors import error_from
from holdfast.backends.mysql.sql import VERSION, statements
from holdfast.backends.net.blocking import BlockingPoller
from holdfast.backends.sql_connections import TablesMissing, TransactionConflict
from holdfast.errors import BackendUnavailable, ConfigurationError, OutcomeUnknown
from holdfast.runtimes import system
from holdfast.runtimes.threads import ThreadRuntime, run_sync


def packet(payload: bytes, number: int = 1) -> bytes:
    return len(payload).to_bytes(3, "little") + bytes([number]) + payload


def ok(changed: int = 0, number: int = 0, status: int = 2) -> bytes:
    return packet(b"\x00" + bytes([changed]) + b"\xfe" + struct.pack("<QHH", number, status, 0))


def rows(*values: bytes, status: int = 2) -> bytes:
    end = b"\xfe" + struct.pack("<HH", 0, status)
    packets = b"".join(packet(bytes([len(value)]) + value) for value in values)
    return packet(b"\x01") + packet(b"a column") + packet(end) + packets + packet(end)


def failed(code: int) -> bytes:
    return packet(b"\xff" + struct.pack("<H", code) + b"#HY000no such luck")


MakeConnection = Callable[..., Connection]


@pytest.fixture
def connection_to() -> Iterator[MakeConnection]:
    """A connection to a server that sends `answer` in pieces of `piece` bytes, and then is silent or closes it."""
    threads: list[threading.Thread] = []
    ends: list[socket.socket] = []

    def make(answer: bytes, *, piece: int = 65536, closes_connection: bool = False) -> Connection:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)  # noqa: FBT003

        def serve() -> None:
            theirs.recv(65536)
            for start in range(0, len(answer), piece):
                theirs.sendall(answer[start : start + piece])
            if closes_connection:
                theirs.close()

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        ends.extend((ours, theirs))
        return Connection("mysql://db", ours, BlockingPoller(), ThreadRuntime())

    yield make
    for end in ends:
        end.close()
    for thread in threads:
        thread.join()


def deadline_in(seconds: float = 10.0) -> float:
    return system.now() + seconds


@pytest.mark.parametrize("piece", [1, 3, 65536])
def test_query_reads_an_answer_that_arrives_in_pieces_of_any_size(connection_to: MakeConnection, piece: int) -> None:
    data = rows(b"x", b"y", status=2 | 8) + ok()  # the answer to a CALL

    answer = run_sync(connection_to(data, piece=piece).query("CALL it", deadline_in()))

    assert answer.rows == [("x",), ("y",)]


def test_query_returns_large_numbers_exactly(connection_to: MakeConnection) -> None:
    answer = run_sync(connection_to(ok(changed=2, number=2**53 + 1)).query("UPDATE it", deadline_in()))

    assert (answer.changed, answer.number) == (2, 2**53 + 1)


@pytest.mark.parametrize(
    ("code", "error", "is_open"),
    [
        (1213, TransactionConflict, True),
        (1205, TransactionConflict, True),
        (1146, TablesMissing, True),
        (1290, BackendUnavailable, False),
        (1114, BackendUnavailable, False),
        (1317, OutcomeUnknown, False),
        (1142, ConfigurationError, False),
        (9999, BackendUnavailable, False),
    ],
)
def test_an_error_is_translated_and_a_connection_in_doubt_is_closed(
    connection_to: MakeConnection, *, code: int, error: type[Exception], is_open: bool
) -> None:
    connection = connection_to(failed(code))

    with pytest.raises(error, match="no such luck"):
        run_sync(connection.query("SELECT 1", deadline_in()))

    assert connection.is_open is is_open


@pytest.mark.parametrize("answer", [b"", ok()[:5]])
def test_outcome_is_unknown_when_the_answer_ends_early(connection_to: MakeConnection, answer: bytes) -> None:
    connection = connection_to(answer, closes_connection=True)

    with pytest.raises(OutcomeUnknown):
        run_sync(connection.query("SELECT 1", deadline_in()))

    assert not connection.is_open


def test_query_ends_at_the_deadline_when_the_server_is_silent(connection_to: MakeConnection) -> None:
    connection = connection_to(b"")

    with pytest.raises(OutcomeUnknown, match="in time"):
        run_sync(connection.query("SELECT 1", deadline_in(0.1)))

    assert not connection.is_open


def test_nothing_is_sent_when_no_time_is_left(connection_to: MakeConnection) -> None:
    connection = connection_to(ok())

    with pytest.raises(BackendUnavailable):
        run_sync(connection.query("SELECT 1", deadline_in(-0.1)))

    assert connection.is_open
    run_sync(connection.query("SELECT 1", deadline_in()))


def test_a_server_that_requests_a_local_file_gets_none(connection_to: MakeConnection) -> None:
    with pytest.raises(OutcomeUnknown):
        run_sync(connection_to(packet(b"\xfb/etc/passwd")).query("SELECT 1", deadline_in()))


def test_a_connection_with_unrequested_data_is_dead() -> None:
    ours, theirs = socket.socketpair()
    connection = Connection("mysql://db", ours, BlockingPoller(), ThreadRuntime())
    assert not connection.is_dead()

    theirs.sendall(failed(4031))

    assert connection.is_dead()
    connection.close()
    theirs.close()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "NULL"),
        (True, "TRUE"),
        (7, "7"),
        (b"\0'", "x'0027'"),
        ("abc1", "'abc1'"),
        ("a'b", "_utf8mb4 x'612762'"),
        ("é", "_utf8mb4 x'c3a9'"),
        ("", "_utf8mb4 x''"),
        (("a", 1), "'a', 1"),
    ],
)
def test_literals_do_not_depend_on_settings_of_the_session(value: object, text: str) -> None:
    assert literal(value) == text


def test_every_server_error_is_translated() -> None:
    for code in range(1, 5000):
        assert isinstance(
            error_from(code, "m", "u"),
            BackendUnavailable | OutcomeUnknown | ConfigurationError | TransactionConflict | TablesMissing,
        )


def test_the_schema_is_split_into_statements() -> None:
    names, texts = zip(*statements(), strict=True)

    procedures = [name for name, text in statements() if "CREATE PROCEDURE" in text]
    assert len(procedures) == 7
    assert all(name.startswith("holdfast_") for name in procedures)
    assert {"holdfast_locks", "holdfast_records"} < {*names}
    assert names[-1] == ""
    assert texts[-1].endswith(f"INTO holdfast_schema VALUES ({VERSION})")
    assert not [text for text in texts if "DELIMITER" in text or "{" in text]
