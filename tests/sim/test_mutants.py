"""The simulator misses a bug: it must find each mutant within its budget."""

from __future__ import annotations

import pytest

from holdfast_lab.checking import report
from holdfast_lab.sim.mutants import MUTANTS
from holdfast_lab.sim.run import Plan, run

# The promises (or errors) by which each mutant may be caught. A mutant that is caught by another one is not understood.
CAUGHT_BY = {
    "half-is-a-majority": {"mutual exclusion", "growing fences"},
    "no-quarantine": {"mutual exclusion"},
    "votes-after-the-last-release": {"nothing left", "steady progress"},
    "releases-only-answering-nodes": {"nothing left", "steady progress"},
    "renewal-counts-any-attempt": {"true renewals", "mutual exclusion"},
    "renewal-counts-repairs": {"true renewals"},
    "unanswered-delete-is-release": {"nothing left", "steady progress"},
    "searches-lagging-server": {"nothing left", "steady progress"},
    "children-sorted-by-name": {"mutual exclusion", "fair order", "growing fences"},
    "no-thread-no-release": {"nothing left", "steady progress"},
    "nothing-changed-after-create": {"nothing left", "steady progress"},
    "numbers-as-text": {"mutual exclusion", "fair order", "steady progress"},
    "renews-by-stale-read": {"true renewals"},
    "restored-tickets-stay": {"nothing left", "steady progress"},
    "session-longer-than-ttl": {"nothing left", "steady progress"},
    "retries-ended-session": {"nothing left", "steady progress"},
    "loss-reported-after-reply": {"losses reported"},
    "subscribers-before-the-holder": {"losses reported"},
    "timeout-has-no-event": {"balanced events"},
    "unanswered-release-has-no-event": {"balanced events"},
    "failed-lock-all-has-no-end": {"balanced events"},
    "lock-without-keeper-not-released": {"nothing left", "steady progress"},
    "trusts-the-server-only": {"mutual exclusion"},
    "busy-without-answer": {"exact outcomes"},
    "cancelled-acquire-leaves-ticket": {"nothing left", "steady progress"},
    "check-then-insert": {"mutual exclusion", "fair order"},
    "client-clock-as-now": {"mutual exclusion", "growing fences", "true renewals", "nothing left"},
    "ignores-a-clock-set-back": {"steady progress"},
    "new-rows-are-free": {"mutual exclusion", "fair order"},
    "dead-waiter-blocks": {"nothing left", "steady progress"},
    "client-time-as-now": {"mutual exclusion", "growing fences", "true renewals", "nothing left"},
    "deadline-from-reply": {"mutual exclusion", "growing fences", "losses reported"},
    "pending-release-dropped": {"nothing left", "steady progress"},
    "etcd-deadline-from-acquire": {"mutual exclusion"},
    "etcd-ignores-restored-data": {"growing fences"},
    "etcd-granted-under-waiter-lease": {"mutual exclusion"},
    "etcd-key-named-by-lease": {"mutual exclusion", "growing fences"},
    "etcd-own-key-not-checked": {"mutual exclusion"},
    "etcd-refusal-means-unchanged": {"nothing left", "steady progress"},
    "etcd-gives-up-without-withdrawing": {"nothing left", "steady progress"},
    "etcd-waiters-under-ttl-lease": {"dead waiters"},
    "etcd-watch-without-revision": {"steady progress"},
    "etcd-withdrawn-without-tombstone": {"nothing left", "steady progress"},
    "failed-connections-count": {"steady progress", "nothing left"},
    "one-vanished-connection-for-each-attempt": {"steady progress", "nothing left", "true renewals"},
    "lease-without-expiry": {"nothing left", "steady progress"},
    "fence-by-clock-only": {"growing fences", "mutual exclusion"},
    "fence-by-incr": {"growing fences"},
    "fence-by-sequence": {"growing fences"},
    "fence-drawn-when-queued": {"growing fences"},
    "fence-not-stored": {"growing fences", "mutual exclusion"},  # a place in the queue is drawn from the same number
    "fence-without-floor": {"growing fences"},
    "releases-blindly": {"mutual exclusion"},
    "advisory-lock-before-lease": {"steady progress"},
    "advisory-lock-is-the-lock": {"mutual exclusion"},
    "getset-own-overwrite-is-grant": {"mutual exclusion"},
    "getset-without-compare": {"mutual exclusion"},
    "dead-waiters-stay": {"steady progress", "nothing left"},
    "dead-waiters-expire-in-turn": {"prompt grants", "steady progress", "nothing left"},
    "grants-before-waiters": {"fair order", "growing fences"},
    "hand-over-from-notification": {"mutual exclusion", "growing fences"},
    "hand-over-by-old-notification": {"mutual exclusion", "growing fences"},
    "notifications-only": {"steady progress"},
    "late-reply-is-a-grant": {"mutual exclusion", "growing fences", "losses reported"},
    "late-renewal-revives-lease": {"losses reported", "mutual exclusion"},
    "lease-ends-with-connection": {"mutual exclusion"},
    "loss-not-reported": {"losses reported"},
    "grant-clears-waiters": {"fair order"},
    "memcached-deadline-from-reply": {"mutual exclusion", "growing fences"},
    "memcached-deletes-blindly": {"mutual exclusion"},
    "memcached-fence-is-the-version": {"growing fences"},
    "memcached-forgets-unanswered-adds": {"steady progress", "nothing left"},
    "memcached-renews-blindly": {"mutual exclusion", "steady progress", "true renewals"},
    "memcached-no-margin": {"mutual exclusion"},
    "memcached-no-clock-check": {"mutual exclusion"},
    "memcached-version-of-earlier-run": {"mutual exclusion"},
    "reader-marker-expires-with-first": {"mutual exclusion", "true renewals"},
    "lock-all-cancelled-leaves-some": {"nothing left", "steady progress"},
    "lock-all-in-the-callers-order": {"steady progress"},
    "lock-all-keeps-a-prefix": {"whole groups"},
    "lock-all-loses-one": {"whole groups", "losses reported"},
    "claim-always-refused": {"single runs"},
    "claim-in-two-steps": {"single runs"},
    "claim-without-nonce": {"single runs"},
    "unanswered-claim-succeeds": {"single runs"},
    "released-during-lock-delay": {"lock delays"},
    "deadline-includes-lock-delay": {"lock delays"},
    "owner-has-new-fences": {"mutual exclusion"},
    "owner-ignores-others": {"mutual exclusion", "growing fences"},
    "release-ends-all-of-owner": {"mutual exclusion", "true renewals"},
    "checks-only-earlier-tickets": {"mutual exclusion"},
    "revocation-reaches-every-holder": {"revocations received"},
    "revocation-read-at-grant-only": {"revocations received"},
    "terms-counted-locally": {"growing terms"},
    "no-pending-releases": {"nothing left", "steady progress"},
    "no-second-poll": {"steady progress"},
    "no-tombstone": {"nothing left", "steady progress"},
    "releases-not-remembered": {"nothing left", "steady progress"},
    "nonce-dropped-before-release": {"nothing left", "steady progress"},
    # RuntimeError: a waiter polls again when the row that blocks it expires, here without a pause.
    "nothing-expires": {"steady progress", "nothing left", "RuntimeError"},
    "single-renewal-attempt": {"true renewals"},
    "paused-is-dead": {"mutual exclusion"},
    "queue-deletes-blindly": {"mutual exclusion"},
    "queue-renews-blindly": {"true renewals", "mutual exclusion"},
    "reaps-by-number": {"mutual exclusion", "true renewals", "growing fences"},
    "reaps-too-soon": {"nothing left", "steady progress"},
    "release-without-owner-check": {"mutual exclusion"},
    "renewal-by-name": {"true renewals", "mutual exclusion"},
    "renewal-deadline-from-reply": {"mutual exclusion", "growing fences", "losses reported"},
    "renewal-stops-at-first-error": {"true renewals"},
    "renewal-recreates": {"fair order", "nothing left", "steady progress", "growing fences"},
    "renews-by-the-ttl-only": {"true renewals"},
    "resend-makes-second-lease": {"nothing left", "steady progress", "fair order", "single grants"},
    "row-lock-is-the-lock": {"mutual exclusion"},
    "row-waits-for-own-lease": {"steady progress"},
    "row-renewal-recreates": {"true renewals", "nothing left", "fair order", "steady progress"},
    "row-renewed-blindly": {"true renewals", "mutual exclusion"},
    "semaphore-off-by-one": {"mutual exclusion"},
    "setnx-deletes-blindly": {"mutual exclusion"},
    "setnx-no-tombstone": {"nothing left", "steady progress"},
    "setnx-then-expire": {"steady progress", "nothing left"},
    "redis-dead-waiters-in-turn": {"prompt grants"},
    "side-key-in-other-slot": {"ScriptFailed"},
    "side-keys-of-the-prefix": {"mutual exclusion", "growing fences"},
    "subscribes-too-late": {"steady progress"},
    "acquires-past-the-queue": {"fair order", "mutual exclusion"},
    "timeout-restarts-at-wake": {"exact outcomes"},
    "unique-by-client-clock": {"mutual exclusion", "growing fences", "true renewals", "nothing left"},
    **{f"{method}-ignores-a-clock-set-back": {"steady progress"} for method in ("row", "unique", "version")},
    "unique-new-rows-are-free": {"mutual exclusion", "growing fences", "fair order"},
    "unique-check-then-insert": {"mutual exclusion", "fair order"},
    "unique-fence-by-clock": {"growing fences"},
    "unique-released-blindly": {"mutual exclusion"},
    "unique-releases-not-remembered": {"nothing left", "steady progress"},
    "unique-nothing-expires": {"steady progress", "nothing left"},
    "unique-reaps-by-number": {"mutual exclusion", "true renewals", "growing fences"},
    "unique-acquires-past-the-queue": {"fair order", "mutual exclusion"},
    "version-by-client-clock": {"mutual exclusion", "growing fences", "true renewals", "nothing left"},
    "version-released-blindly": {"mutual exclusion"},
    "version-is-the-clock": {"growing fences"},
    "version-kept-by-release": {"nothing left", "steady progress"},
    "version-not-compared": {"mutual exclusion", "nothing left"},
    "version-not-current": {"nothing left", "steady progress"},
    "waits-on-dead-connection": {"steady progress"},
    "wake-up-missed": {"steady progress"},
    "writer-ignores-readers": {"mutual exclusion"},
    "zero-timeout-queues": {"exact outcomes"},
}

# Worlds in which slow mutants are caught at present. Trying them first saves minutes; all worlds of the budget count.
CAUGHT_AT = {
    "dead-waiters-stay": 145,
    "etcd-gives-up-without-withdrawing": 86,
    "hand-over-by-old-notification": 271,
    "no-quarantine": 92,
    "no-thread-no-release": 33,
    "pending-release-dropped": 284,
    "queue-renews-blindly": 73,
    "renewal-counts-any-attempt": 128,
    "renewal-deadline-from-reply": 1363,
    "renews-by-stale-read": 43,
    "renews-by-the-ttl-only": 453,
    "restored-tickets-stay": 96,
    "searches-lagging-server": 247,
    "single-renewal-attempt": 332,
}

# The others are in test_redlock_fences.py, test_redis_owners.py, test_redis_registers.py, test_postgresql_worlds.py and
# test_postgresql_owners.py.
BY_SEEDS = [name for name, mutant in MUTANTS.items() if mutant.by_seeds]


def test_every_mutant_is_expected_to_break_something() -> None:
    assert set(CAUGHT_BY) == set(BY_SEEDS)
    assert set(CAUGHT_AT) <= set(BY_SEEDS)


@pytest.mark.parametrize("name", BY_SEEDS)
def test_a_mutant_is_caught_within_its_budget(name: str) -> None:
    mutant = MUTANTS[name]
    plan = mutant.apply(Plan())

    first = CAUGHT_AT.get(name, 0)

    for seed in (first, *range(first), *range(first + 1, mutant.budget)):
        result = run(plan, seed)
        if result.failure is not None:
            message = result.error or report(result.history, result.verdict)
            assert result.failure in CAUGHT_BY[name], message
            return

    pytest.fail(f"{name} survived {mutant.budget} worlds: {mutant.mistake}")
