"""A harness that finds nothing because it sees nothing: each mutant is a bug that it has to see, within a budget."""

from __future__ import annotations

import pytest

from holdfast.checking import report
from holdfast.sim.mutants import MUTANTS
from holdfast.sim.run import Plan, run

# Which promise breaks is part of the claim: a mutant that trips over something else is not understood.
CAUGHT_BY = {
    "alarm-behind-request": {"loss told", "true renewals"},
    "believes-the-server-only": {"mutual exclusion"},
    "busy-said-of-silence": {"exact outcomes"},
    "cancelled-acquire-leaves-ticket": {"nothing left", "steady progress"},
    "dead-waiter-blocks": {"nothing left", "steady progress"},
    "deadline-from-reply": {"mutual exclusion", "growing fences", "loss told"},
    "debt-forgotten": {"nothing left", "steady progress"},
    "expiry-forgotten": {"nothing left", "steady progress"},
    "fence-drawn-when-queued": {"growing fences"},
    "fence-not-stored": {"growing fences"},
    "fence-without-floor": {"growing fences"},
    "grant-below-waiters": {"fair order", "growing fences"},
    "late-reply-is-a-grant": {"mutual exclusion", "growing fences", "loss told"},
    "late-success-revives": {"loss told", "mutual exclusion"},
    "loss-not-told": {"loss told"},
    "no-debts": {"nothing left", "steady progress"},
    "no-second-look": {"steady progress"},
    "nonce-dropped-before-release": {"nothing left", "steady progress"},
    "one-try-for-a-renewal": {"true renewals"},
    "paused-is-dead": {"mutual exclusion"},
    "release-without-owner-check": {"mutual exclusion"},
    "renewal-by-name": {"true renewals", "mutual exclusion"},
    "renewal-deadline-from-reply": {"mutual exclusion", "growing fences", "loss told"},
    "renewal-dies-at-first-error": {"true renewals"},
    "renewal-recreates": {"fair order", "nothing left", "steady progress", "growing fences"},
    "renews-by-the-ttl-only": {"true renewals"},
    "resend-makes-second-lease": {"nothing left", "steady progress", "fair order", "single grants"},
    "semaphore-of-one-more": {"mutual exclusion"},
    "timeout-restarts-at-wake": {"exact outcomes"},
    "wake-up-missed": {"steady progress"},
    "writer-ignores-readers": {"mutual exclusion"},
    "zero-timeout-queues": {"exact outcomes"},
}


def test_every_mutant_is_expected_to_break_something() -> None:
    assert set(CAUGHT_BY) == set(MUTANTS)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught_within_its_budget(name: str) -> None:
    mutant = MUTANTS[name]
    plan = mutant.apply(Plan())

    for seed in range(mutant.budget):
        result = run(plan, seed)
        worst = result.verdict.gravest
        if worst is not None:
            assert worst.checker in CAUGHT_BY[name], report(result.history, result.verdict)
            return

    pytest.fail(f"{name} survived {mutant.budget} worlds: {mutant.mistake}")
