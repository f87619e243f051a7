"""Transfers and lost answers: a lease is never held twice, and a transfer text adopts its lease or no lease."""

from __future__ import annotations

import pytest

import holdfast
from holdfast.core.transfers import Transfer, decode_transfer, encode_transfer
from holdfast_lab.conformance.lab import Lab
from tests.support.faulty import DOWN, LOST, NO_REPLY, OK, Faults


@pytest.mark.parametrize("outcome", [LOST, NO_REPLY, DOWN])
async def test_a_transfer_without_an_answer_ends_the_lease_and_frees_the_lock(
    lab: Lab, faults: Faults, outcome: str
) -> None:
    giver, other = lab.actor(), lab.actor()
    events: list[tuple[str, str]] = []
    giver.client.subscribe(lambda event: events.append((event.kind, event.outcome)))
    lease = await giver(lambda client: client.lock("a", ttl=60).acquire())
    faults.plan("adopt", outcome)

    with pytest.raises(holdfast.BackendError):
        await giver(lambda _: lease.transfer(within=60))

    assert not lease.held
    assert await other(lambda client: client.lock("a").acquire(timeout=50))
    assert events[-1] == ("released", "unanswered")


@pytest.mark.parametrize("outcome", [LOST, NO_REPLY])
async def test_an_adoption_without_an_answer_is_repeated_with_the_same_ticket(
    lab: Lab, faults: Faults, outcome: str
) -> None:
    giver, adopter = lab.actor(), lab.actor()
    lease = await giver(lambda client: client.lock("a", ttl=60).acquire())
    text = await giver(lambda _: lease.transfer())
    faults.plan("adopt", outcome, OK)

    adopted = await adopter(lambda client: client.adopt(text))

    assert faults.count("adopt") == 3, "one for the transfer, and two for the adoption"
    assert adopted.fence > lease.fence
    assert [holder.fence for holder in (await lab.state("a")).holders] == [adopted.fence]


async def test_an_adoption_that_is_never_answered_is_released(lab: Lab, faults: Faults) -> None:
    giver, adopter, other = lab.actor(), lab.actor(), lab.actor()
    lease = await giver(lambda client: client.lock("a", ttl=60).acquire())
    text = await giver(lambda _: lease.transfer(within=60))
    adopter.client._engine.io_timeout = 0.2
    faults.plan("adopt", NO_REPLY)

    with pytest.raises(holdfast.OutcomeUnknown):
        await adopter(lambda client: client.adopt(text))

    assert await other(lambda client: client.lock("a").acquire(timeout=50))


async def test_an_adoption_that_was_not_sent_changes_nothing(lab: Lab, faults: Faults) -> None:
    giver, adopter = lab.actor(), lab.actor()
    lease = await giver(lambda client: client.lock("a", ttl=60).acquire())
    text = await giver(lambda _: lease.transfer(within=60))
    faults.plan("adopt", DOWN, OK)

    with pytest.raises(holdfast.BackendUnavailable):
        await adopter(lambda client: client.adopt(text))

    assert (await adopter(lambda client: client.adopt(text))).held


def test_no_representation_shows_the_nonce() -> None:
    with holdfast.Client("memory://") as client:
        lease = client.lock("unit-transfer").acquire()
        assert lease is not None
        text = lease.transfer()
        nonce = decode_transfer(text).nonce
        assert nonce not in repr(lease)
        assert nonce not in repr(decode_transfer(text))
        assert nonce not in text  # the text has it in an encoded form
        client.adopt(text).release()


@pytest.mark.parametrize("damage", ["\udcff", "é", "\0"])
def test_a_text_with_a_damaged_character_is_refused(damage: str) -> None:
    text = encode_transfer(Transfer("memory", "a", "n" * 32, ttl=30.0, min_hold_left=0.0))
    damaged = f"{text[:30]}{damage}{text[31:]}"

    with pytest.raises(holdfast.ConfigurationError, match="damaged"):
        decode_transfer(damaged)
