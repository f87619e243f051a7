"""Hazard: a scenario of `make failovers` does not run any more, or its page differs from the stored results."""

from __future__ import annotations

import sys

import pytest

from packages.lab.scenarios import results
from packages.lab.scenarios.__main__ import PAGE, main
from packages.lab.scenarios.page import page
from packages.lab.scenarios.registry import SCENARIOS

linux = pytest.mark.skipif(sys.platform != "linux", reason="stops and kills processes")


@pytest.fixture
def two_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, scenario in SCENARIOS.items():
        monkeypatch.setitem(SCENARIOS, name, scenario._replace(options=(*scenario.options, "--workers", "2")))


@linux
@pytest.mark.slow
@pytest.mark.usefixtures("two_workers")
def test_a_server_that_loses_its_locks_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--only", "redis-without-persistence", "--seconds", "5", "--no-page"]

    assert main(words) == 0, capsys.readouterr().err

    shown = capsys.readouterr().err
    assert "fault 1: restart" in shown
    assert "exclusion broken as declared" in shown


@linux
@pytest.mark.slow
@pytest.mark.usefixtures("two_workers")
def test_a_failover_runs_and_all_declared_promises_hold(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "sentinel-failover", "--seconds", "3", "--no-page"]) == 0, capsys.readouterr().err

    assert "fault 1: switch" in capsys.readouterr().err


def test_the_page_is_made_of_the_stored_results_of_all_scenarios() -> None:
    stored = results.stored()

    assert set(stored) == set(SCENARIOS)
    assert PAGE.read_text() == page(stored)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_stored_result_is_as_declared(name: str) -> None:
    assert results.stored()[name].problem(SCENARIOS[name]) == ""


def test_an_unknown_scenario_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "nothing"])

    assert "--only nothing: no such scenario (known: sentinel-failover" in capsys.readouterr().err
