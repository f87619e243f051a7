"""Hazard: `holdfast once` shows a wrong state, or forgets another run than the one that the operator saw."""

from __future__ import annotations

import pytest

import holdfast
from tests.integration.cli.conftest import CliStore


@pytest.fixture
def done(store: CliStore) -> holdfast.Outcome[object]:
    """The run of the key `charge:7`."""
    with holdfast.Client(store.url) as client:
        return client.once("charge:7", result=True).run(lambda: {"receipt": "R-7"})


def test_show_prints_the_record_of_a_key(store: CliStore, done: holdfast.Outcome[object]) -> None:
    shown = store.run("once", "show", "charge:7")
    as_json = store.run("once", "show", "charge:7", "--json").json

    assert (shown.status, shown.errors) == (0, "")
    assert shown.lines[0] == "charge:7"
    facts = dict(line.split(maxsplit=1) for line in shown.lines[2:])
    assert (facts["state"], facts["fence"], facts["result"]) == ("done", str(done.fence), '{"receipt": "R-7"}')
    assert as_json["state"] == "done"
    assert as_json["value"] == {"receipt": "R-7"}
    assert (as_json["fence"], as_json["at"]) == (done.fence, done.at)


def test_show_prints_the_error_of_a_failed_run(store: CliStore) -> None:
    with holdfast.Client(store.url) as client, pytest.raises(ZeroDivisionError):
        client.once("charge:7", after_error="remember").run(lambda: 1 / 0)

    shown = store.run("once", "show", "charge:7")

    assert "failed" in shown.out
    assert "ZeroDivisionError: division by zero" in shown.out


def test_a_key_without_a_record_is_named(store: CliStore, done: holdfast.Outcome[object]) -> None:
    shown = store.run("once", "show", "charge:8")

    assert (shown.status, shown.out, shown.errors) == (1, "", "charge:8 has no record\n")


def test_forget_removes_the_record_with_this_fence(store: CliStore, done: holdfast.Outcome[object]) -> None:
    assert done.fence is not None
    other = store.run("once", "forget", "charge:7", "--fence", str(done.fence + 1), "--yes")
    forgotten = store.run("once", "forget", "charge:7", "--fence", str(done.fence), "--yes", "--json")

    assert other.status == 1
    assert "is not forgotten" in other.errors
    assert forgotten.status == 0
    assert forgotten.json == {"key": "charge:7", "fence": done.fence, "forgotten": True}
    assert store.run("once", "show", "charge:7").status == 1


def test_forget_does_not_ask_without_a_terminal(store: CliStore, done: holdfast.Outcome[object]) -> None:
    refused = store.run("once", "forget", "charge:7")

    assert refused.status == 2
    assert "nothing was forgotten: use --yes" in refused.errors
    assert store.run("once", "show", "charge:7").status == 0
    assert store.run("once", "show", "charge:7", "--yes").status == 2
