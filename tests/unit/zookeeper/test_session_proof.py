"""A session is proven only as far as three answered writes in a row allow, as session_proof.py explains."""

from __future__ import annotations

import pytest

from holdfast.backends.zookeeper.protocol.session_proof import GAP_MAX, SessionProof
from holdfast.core.clock import DRIFT

TIMEOUT = 30.0


@pytest.fixture
def proof() -> SessionProof:
    proof = SessionProof(TIMEOUT)
    proof.record_connection(1, 100.0)
    return proof


def deadline_of(since: float) -> float:
    return since + TIMEOUT * (1 - DRIFT)


def test_nothing_is_proven_when_a_session_was_never_connected() -> None:
    assert SessionProof(TIMEOUT).valid_until == float("-inf")


def test_a_connection_counts_from_its_request(proof: SessionProof) -> None:
    assert proof.valid_until == deadline_of(100.0)


def test_a_single_pair_proves_nothing(proof: SessionProof) -> None:
    proof.record_pair(1, 110.0, 110.1, 110.2)

    assert proof.valid_until == deadline_of(100.0)


def test_a_later_pair_proves_the_second_write_of_an_earlier_one(proof: SessionProof) -> None:
    proof.record_pair(1, 110.0, 110.1, 110.2)
    proof.record_pair(1, 110.2 + GAP_MAX, 116.0, 116.1)

    assert proof.valid_until == deadline_of(110.1)


def test_a_pair_proves_nothing_when_the_gap_is_too_short(proof: SessionProof) -> None:
    proof.record_pair(1, 110.0, 110.1, 110.2)
    proof.record_pair(1, 110.1 + GAP_MAX, 116.0, 116.1)

    assert proof.valid_until == deadline_of(100.0), "the leader may not have sent a ping in between"


def test_writes_to_the_previous_server_do_not_count_after_a_reconnect(proof: SessionProof) -> None:
    proof.record_pair(1, 110.0, 110.1, 110.2)
    proof.record_connection(2, 105.0)
    proof.record_pair(2, 120.0, 120.1, 120.2)

    assert proof.valid_until == deadline_of(105.0)


def test_a_pair_does_not_count_when_its_connection_is_closed(proof: SessionProof) -> None:
    proof.record_connection(2, 105.0)
    proof.record_pair(1, 110.0, 110.1, 110.2)
    proof.record_pair(2, 120.0, 120.1, 120.2)

    assert proof.valid_until == deadline_of(105.0)


def test_a_proof_is_never_withdrawn(proof: SessionProof) -> None:
    proof.record_connection(1, 50.0)
    proof.record_connection(2, 50.0)

    assert proof.valid_until == deadline_of(100.0)


@pytest.mark.parametrize("timeout", [3.0, 4.0, 12.0, 30.0, 60.0])
def test_half_of_the_timeout_remains_at_any_time_without_faults(timeout: float) -> None:
    proof = SessionProof(timeout)
    now = 0.0
    proof.record_connection(1, now)
    for _ in range(50):
        now += proof.pause
        remaining = proof.valid_until - now
        assert remaining > timeout * (0.5 - DRIFT) - 0.1, f"at {now}"
        proof.record_pair(1, now, now + 0.01, now + 0.02)
