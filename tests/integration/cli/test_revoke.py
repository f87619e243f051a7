"""Hazard: `holdfast revoke` ends a lease, sends the request to a successor, or misreports what is revocable."""

from __future__ import annotations

from tests.integration.cli.conftest import CliStore
from tests.support.processes import Worker, WorkerPool, eventually

TTL = 0.9  # seconds; a holder checks for requests every third of it


def test_revoke_sends_a_request_and_does_not_end_the_lease(store: CliStore, holder: Worker) -> None:
    fence = holder.call("hold", lock="a", revocable=True, ttl=TTL)["fence"]

    result = store.run("revoke", "a")

    assert (result.status, result.errors) == (0, "")
    assert result.lines == [f"a, fence {fence}: release requested from {store.client.inspect('a').holders[0]}"]
    eventually(lambda: holder.call("revoked", lock="a")["revoked"] == [fence])
    assert store.fences("a") == [fence]


def test_revoke_exits_with_1_when_the_holder_is_not_revocable(store: CliStore, holder: Worker) -> None:
    fence = holder.call("hold", lock="a", ttl=TTL)["fence"]

    result = store.run("revoke", "a")
    as_json = store.run("revoke", "a", "--json")

    assert result.status == as_json.status == 1
    assert result.out.endswith(", which is not revocable\n")
    (asked,) = as_json.json["asked"]
    assert (asked["fence"], asked["pid"], asked["listens"], asked["over"]) == (fence, holder.pid, False, None)


def test_revoke_waits_until_the_lease_has_ended(store: CliStore, pool: WorkerPool, holder: Worker) -> None:
    fence = holder.call("release_on_request", lock="a", ttl=TTL)["fence"]
    pool.start(store.url).call("wait", lock="a")
    store.await_waiters("a", 1)

    result = store.run("revoke", "a", "--wait", "30")

    assert (result.status, result.errors) == (0, "")
    assert result.lines[1:] == [f"a, fence {fence}: ended"]
    (successor,) = store.fences("a")
    assert successor > fence


def test_revoke_exits_with_1_when_the_lease_outlasts_the_wait(store: CliStore, holder: Worker) -> None:
    fence = holder.call("hold", lock="a", revocable=True)["fence"]

    result = store.run("revoke", "a", "--wait", "0.2")
    as_json = store.run("revoke", "a", "--wait", "0", "--json")

    assert result.status == as_json.status == 1
    assert result.errors == f"a, fence {fence}: still held after 0.2 s\n"
    assert [(asked["fence"], asked["listens"], asked["over"]) for asked in as_json.json["asked"]] == [
        (fence, True, False)
    ]
    assert store.fences("a") == [fence]


def test_revoke_succeeds_when_a_holder_that_is_not_revocable_ends_during_the_wait(
    store: CliStore, holder: Worker
) -> None:
    fence = holder.call("hold", lock="a", ttl=5, renew=False)["fence"]  # longer than it takes to start a process

    result = store.run("revoke", "a", "--wait", "30", "--json")

    assert (result.status, result.json["asked"][0]["over"]) == (0, True)
    assert fence not in store.fences("a")


def test_revoke_with_a_fence_applies_to_smaller_fences_too(store: CliStore, pool: WorkerPool) -> None:
    holders = [pool.start(store.url) for _ in range(3)]
    fences = [worker.call("hold", lock="pool", limit=3, revocable=True, ttl=TTL)["fence"] for worker in holders]

    result = store.run("revoke", "pool", "--fence", str(fences[1]), "--json")

    assert [asked["fence"] for asked in result.json["asked"]] == fences[:2]
    for worker, fence in zip(holders[:2], fences, strict=False):
        eventually(lambda worker=worker, fence=fence: worker.call("revoked", lock="pool")["revoked"] == [fence])  # type: ignore[misc]  # defaults
    assert holders[2].call("revoked", lock="pool") == {"revoked": []}


def test_revoke_sends_no_request_for_an_unknown_fence(store: CliStore, holder: Worker) -> None:
    fence = holder.call("hold", lock="a", revocable=True, ttl=TTL)["fence"]

    result = store.run("revoke", "a", "--fence", str(fence + 1))

    assert (result.status, result.out) == (1, "")
    assert result.errors == f"a is not held with fence {fence + 1} (held fences: {fence}): no request was sent\n"


def test_revoke_exits_with_1_when_the_lock_is_free(store: CliStore) -> None:
    assert store.run("revoke", "a") == (1, "", "a has no holder\n")

    as_json = store.run("revoke", "a", "--json", "--wait", "5")
    assert (as_json.status, as_json.json) == (1, {"lock": "a", "asked": []})


def test_show_prints_owner_and_revocable(store: CliStore, pool: WorkerPool) -> None:
    pool.start(store.url).call("hold", lock="a", revocable=True, owner="job-\x1b42")
    pool.start(store.url).call("hold", lock="b")

    revocable, plain = store.run("show", "a"), store.run("show", "b")

    assert "owner           job-\\u001b42" in revocable.lines
    assert any(line.startswith("revocable       yes") for line in revocable.lines)
    assert not any(line.startswith(("owner", "revocable")) for line in plain.lines)
    (holder,) = store.run("show", "a", "--json").json["holders"]
    assert (holder["owner"], holder["revocable"]) == ("job-\x1b42", True)
