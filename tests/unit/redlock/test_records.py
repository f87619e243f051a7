"""Hazard: the replies of five nodes are combined wrongly: no holder, two holders, the fence of a node that is not
eligible, or a waiter more than once.
"""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.backends.redlock.protocol.records import NodeRecord, describe, nonce_of_holder

NODES, QUORUM = 5, 3
INFO = '{"who": {"host": "web", "pid": 8, "program": "p"}, "meta": {}}'


def record(
    value: str = "",
    fence: int = 0,
    remaining: int = 5000,
    waiters: tuple[str, ...] = (),
    is_eligible: bool = True,  # noqa: FBT001, FBT002
) -> NodeRecord:
    """The record of a node whose vote belongs to the ticket `value`; in lower case, to another program."""
    is_ours = value.isupper()
    lines: list[bytes] = []
    if value and is_ours:
        lines += [b"holder", f"{value}\n{fence}\n7000000\n\n\nagent\n{INFO}".encode()]
    for nonce in waiters:
        lines += [nonce.encode(), f"{nonce}\n\n{ord(nonce[0])}000000\nPUBLISH\nx\nagent\n{INFO}".encode()]
    key = f"holdfast:redlock:{value}:1:{fence}" if value and is_ours else value
    queue = [f"x:{nonce}".encode() for nonce in waiters]
    leases: list[bytes] = []
    for member in queue:
        leases += [member, b"9000"]
    reply: list[Any] = [1000, key.encode(), remaining if value else -2, lines, queue, leases]
    return NodeRecord(reply, is_eligible=is_eligible)


@pytest.mark.parametrize(
    ("records", "fence"),
    [
        ([record("A", 5)] * 5, 5),
        ([record("A", 5), record("A", 7), record("A", 6), record(), record()], 7),
        ([record("A", 5)] * 3 + [record("B", 9)] * 2, 5),
        ([record("A", 5)] * 2 + [record("B", 9)] * 2 + [record()], None),
        ([record("A", 5)] * 2 + [record()] * 3, None),
        ([record("A", 5)] * 2 + [record()] * 2, 5),  # one did not reply, and may have voted for it
        ([record("A", 5)] * 2 + [record()], 5),
        ([record("A", 5)] + [record()] * 2, None),  # the vote of an attempt that failed
        ([record("A", 5)] * 3 + [record("A", 99, is_eligible=False)], 5),
        ([record("A", 99, is_eligible=False)] * 3, 99),
        ([record()] * 5, None),
    ],
)
def test_the_holder_is_the_ticket_with_a_majority(records: list[NodeRecord], fence: int | None) -> None:
    info = describe("lock", records, QUORUM, NODES)

    assert [holder.fence for holder in info.holders] == ([] if fence is None else [fence])
    if fence is not None:
        assert nonce_of_holder(records, QUORUM, NODES, fence) == "A"
        assert nonce_of_holder(records, QUORUM, NODES, fence + 1) is None


def test_the_remaining_time_ends_when_the_majority_is_lost() -> None:
    records = [record("A", 5, remaining) for remaining in (1000, 9000, 3000, 7000, 2000)]

    (holder,) = describe("lock", records, QUORUM, NODES).holders

    assert holder.remaining == 3.0


def test_another_program_that_has_a_majority_is_shown_as_such() -> None:
    records = [record("theirs", remaining=4000), record("theirs"), record("theirs"), record("A", 5), record("A", 5)]

    (holder,) = describe("lock", records, QUORUM, NODES).holders

    assert (holder.agent, holder.fence, holder.remaining) == ("another program", 0, 4.0)
    assert describe("lock", [*records[1:], record()], QUORUM, NODES).holders == ()


def test_each_waiter_is_shown_once_in_order_of_arrival() -> None:
    records = [record("A", 5, waiters=("c", "b")), record("A", 5, waiters=("b",)), record("A", 5, waiters=("d", "c"))]

    info = describe("lock", records, QUORUM, NODES)

    assert [waiter.since for waiter in info.waiters] == [float(ord(nonce)) for nonce in "bcd"]
