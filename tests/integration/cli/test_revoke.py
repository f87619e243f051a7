"""`holdfast revoke`: a lease ended that was only asked for, a successor asked, a deaf holder said to listen."""

from __future__ import annotations

from tests.integration.cli.conftest import Place
from tests.support.processes import Worker, WorkerPool, eventually

TTL = 0.9  # seconds: a holder looks for requests every third of it


def test_a_holder_that_listens_is_asked_and_keeps_its_lease(place: Place, holder: Worker) -> None:
    fence = holder.call("hold", lock="a", revocable=True, ttl=TTL)["fence"]

    result = place.run("revoke", "a")

    assert (result.status, result.errors) == (0, "")
    assert result.lines == [f"a, fence {fence}: {place.client.inspect('a').holders[0]} was asked to let go"]
    eventually(lambda: holder.call("asked", lock="a")["asked"] == [fence])
    assert place.fences("a") == [fence]


def test_a_holder_that_does_not_listen_is_said_not_to(place: Place, holder: Worker) -> None:
    fence = holder.call("hold", lock="a", ttl=TTL)["fence"]

    result = place.run("revoke", "a")
    as_json = place.run("revoke", "a", "--json")

    assert result.status == as_json.status == 1
    assert result.out.endswith(" was asked to let go, but does not listen\n")
    (asked,) = as_json.json["asked"]
    assert (asked["fence"], asked["pid"], asked["listens"], asked["over"]) == (fence, holder.pid, False, None)


def test_it_can_wait_until_the_lease_is_over(place: Place, pool: WorkerPool, holder: Worker) -> None:
    fence = holder.call("let_go_when_asked", lock="a", ttl=TTL)["fence"]
    pool.start(place.url).call("wait", lock="a")
    place.await_waiters("a", 1)

    result = place.run("revoke", "a", "--wait", "30")

    assert (result.status, result.errors) == (0, "")
    assert result.lines[1:] == [f"a, fence {fence}: over"]
    (successor,) = place.fences("a")
    assert successor > fence


def test_a_lease_that_goes_on_past_the_wait_is_said_to(place: Place, holder: Worker) -> None:
    fence = holder.call("hold", lock="a", revocable=True)["fence"]

    result = place.run("revoke", "a", "--wait", "0.2")
    as_json = place.run("revoke", "a", "--wait", "0", "--json")

    assert result.status == as_json.status == 1
    assert result.errors == f"a, fence {fence}: still held after 0.2 s\n"
    assert [(asked["fence"], asked["listens"], asked["over"]) for asked in as_json.json["asked"]] == [
        (fence, True, False)
    ]
    assert place.fences("a") == [fence]


def test_a_wait_does_not_mind_that_a_holder_does_not_listen_if_it_ends(place: Place, holder: Worker) -> None:
    fence = holder.call("hold", lock="a", ttl=5, renew=False)["fence"]  # longer than it takes to start a process

    result = place.run("revoke", "a", "--wait", "30", "--json")

    assert (result.status, result.json["asked"][0]["over"]) == (0, True)
    assert fence not in place.fences("a")


def test_of_several_holders_those_up_to_the_fence_are_asked(place: Place, pool: WorkerPool) -> None:
    holders = [pool.start(place.url) for _ in range(3)]
    fences = [one.call("hold", lock="pool", limit=3, revocable=True, ttl=TTL)["fence"] for one in holders]

    result = place.run("revoke", "pool", "--fence", str(fences[1]), "--json")

    assert [asked["fence"] for asked in result.json["asked"]] == fences[:2]
    for one, fence in zip(holders[:2], fences, strict=False):
        eventually(lambda one=one, fence=fence: one.call("asked", lock="pool")["asked"] == [fence])  # type: ignore[misc]  # defaults
    assert holders[2].call("asked", lock="pool") == {"asked": []}


def test_nobody_is_asked_for_a_fence_that_nobody_has(place: Place, holder: Worker) -> None:
    fence = holder.call("hold", lock="a", revocable=True, ttl=TTL)["fence"]

    result = place.run("revoke", "a", "--fence", str(fence + 1))

    assert (result.status, result.out) == (1, "")
    assert result.errors == f"a is not held with fence {fence + 1} (but with {fence}): nobody was asked\n"


def test_a_free_lock_has_nobody_to_ask(place: Place) -> None:
    assert place.run("revoke", "a") == (1, "", "nobody holds a: nobody to ask\n")

    as_json = place.run("revoke", "a", "--json", "--wait", "5")
    assert (as_json.status, as_json.json) == (1, {"lock": "a", "asked": []})


def test_show_says_who_listens_and_in_whose_name(place: Place, pool: WorkerPool) -> None:
    pool.start(place.url).call("hold", lock="a", revocable=True, owner="job-\x1b42")
    pool.start(place.url).call("hold", lock="b")

    told, plain = place.run("show", "a"), place.run("show", "b")

    assert "owner           job-\\u001b42" in told.lines
    assert any(line.startswith("revocable       yes") for line in told.lines)
    assert not any(line.startswith(("owner", "revocable")) for line in plain.lines)
    (shown,) = place.run("show", "a", "--json").json["holders"]
    assert (shown["owner"], shown["revocable"]) == ("job-\x1b42", True)
