"""What is proven of a session: never more than three answered writes in a row allow, as standing.py says."""

from __future__ import annotations

import pytest

from holdfast.backends.zookeeper.protocol.session_proof import GAP_MAX, SessionProof
from holdfast.core.clock import DRIFT

TIMEOUT = 30.0


@pytest.fixture
def proof() -> SessionProof:
    made = SessionProof(TIMEOUT)
    made.record_connection(1, 100.0)
    return made


def believed(since: float) -> float:
    return since + TIMEOUT * (1 - DRIFT)


def test_nothing_is_known_of_a_session_that_was_never_connected() -> None:
    assert SessionProof(TIMEOUT).valid_until == float("-inf")


def test_a_connection_counts_from_when_it_was_asked_for(proof: SessionProof) -> None:
    assert proof.valid_until == believed(100.0)


def test_one_pair_proves_nothing_of_itself(proof: SessionProof) -> None:
    proof.record_pair(1, 110.0, 110.1, 110.2)

    assert proof.valid_until == believed(100.0)


def test_a_later_pair_proves_the_second_write_of_an_earlier_one(proof: SessionProof) -> None:
    proof.record_pair(1, 110.0, 110.1, 110.2)
    proof.record_pair(1, 110.2 + GAP_MAX, 116.0, 116.1)

    assert proof.valid_until == believed(110.1)


def test_a_pair_that_follows_too_soon_proves_nothing_of_the_one_before(proof: SessionProof) -> None:
    proof.record_pair(1, 110.0, 110.1, 110.2)
    proof.record_pair(1, 110.1 + GAP_MAX, 116.0, 116.1)

    assert proof.valid_until == believed(100.0), "the leader may not have sent a ping in between"


def test_what_another_server_has_heard_does_not_count_after_a_reconnect(proof: SessionProof) -> None:
    proof.record_pair(1, 110.0, 110.1, 110.2)
    proof.record_connection(2, 105.0)
    proof.record_pair(2, 120.0, 120.1, 120.2)

    assert proof.valid_until == believed(105.0)


def test_a_pair_on_a_connection_that_is_over_does_not_count(proof: SessionProof) -> None:
    proof.record_connection(2, 105.0)
    proof.record_pair(1, 110.0, 110.1, 110.2)
    proof.record_pair(2, 120.0, 120.1, 120.2)

    assert proof.valid_until == believed(105.0)


def test_nothing_that_was_proven_is_taken_back(proof: SessionProof) -> None:
    proof.record_connection(1, 50.0)
    proof.record_connection(2, 50.0)

    assert proof.valid_until == believed(100.0)


@pytest.mark.parametrize("timeout", [3.0, 4.0, 12.0, 30.0, 60.0])
def test_while_all_goes_well_half_of_the_timeout_is_left_at_any_time(timeout: float) -> None:
    proof = SessionProof(timeout)
    now = 0.0
    proof.record_connection(1, now)
    for _ in range(50):
        now += proof.pause
        left = proof.valid_until - now
        assert left > timeout * (0.5 - DRIFT) - 0.1, f"at {now}"
        proof.record_pair(1, now, now + 0.01, now + 0.02)
