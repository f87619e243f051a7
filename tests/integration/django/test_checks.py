"""Hazard: a wrong setting shows only when the first lock is needed; a store of one machine excludes no other."""

from __future__ import annotations

import json
from ast import literal_eval
from typing import Any

from tests.integration.django.conftest import Project

REFUSED: list[tuple[Any, str]] = [
    ({}, "HOLDFAST has no entry 'default'"),
    ({"default": "redis://cache"}, "HOLDFAST['default'] must be a dict"),
    ({"default": {"URI": "redis://cache"}}, "HOLDFAST['default'] has no key 'URI' (did you mean 'URL'?)"),
    ({"default": {"url": "redis://cache"}}, "(did you mean 'URL'?)"),
    ({"default": {}}, "HOLDFAST['default'] has neither of URL and DATABASE: give one of them"),
    ({"default": {"URL": "reddis://cache"}}, "HOLDFAST['default'] is refused: url has the unknown scheme 'reddis'"),
    ({"default": {"URL": "redis://cache", "OPTIONS": {"prefx": "a"}}}, "(did you mean 'prefix'?)"),
    ({"default": {"URL": "redis://cache", "OPTIONS": {"ttl": 5}}}, "HOLDFAST['default']['OPTIONS'] has 'ttl'"),
    ({"default": {"URL": "redis://cache", "TTL": "soon"}}, "ttl must be"),
    ({"default": {"DATABASE": "replica"}}, "['DATABASE'] is 'replica', which is not in DATABASES"),
    (
        {"default": {"DATABASE": "default"}, "jobs": {"URL": "memory://", "REQUIRE": {"scope": "network"}}},
        "HOLDFAST['jobs'] is refused: memory:// promises less than is required",
    ),

]  # fmt: skip
CHECK = """
import json, sys
from django.core.checks import run_checks
from django.test import override_settings
for settings in json.loads({settings!r}):
    with override_settings(**settings):
        print([str(message) for message in run_checks(tags=["holdfast"])])
"""


def test_an_error_names_the_setting_and_the_fix(small_project: Project) -> None:
    code = CHECK.format(settings=json.dumps([{"HOLDFAST": stores} for stores, _ in REFUSED]))

    lines = small_project.python(code).splitlines()

    for line, (_, message) in zip(lines, REFUSED, strict=True):
        assert "holdfast.E001" in line
        assert message in literal_eval(line)[-1]


def test_a_missing_setting_is_an_error(small_project: Project) -> None:
    del small_project.environment["PROJECT_HOLDFAST"]

    output = small_project.manage("check", status=1)

    assert 'the setting HOLDFAST is missing: add HOLDFAST = {"default": {"DATABASE": "default"}}' in output


def test_a_store_that_other_machines_do_not_share_warns_outside_debug(small_project: Project) -> None:
    stores = [{"default": {"URL": url}} for url in ("memory://", "sqlite:////tmp/locks.db")]
    settings = [{"HOLDFAST": store, "DEBUG": debug} for store in stores for debug in (False, True)]

    lines = small_project.python(CHECK.format(settings=json.dumps(settings))).splitlines()

    assert ["holdfast.W001" in line for line in lines] == [True, False, True, False]
    assert lines[1] == lines[3] == "[]"


def test_a_store_on_the_network_has_no_message(project: Project) -> None:
    assert "no issues" in project.manage("check")
