"""Hazard: two names with one key, or a name that is several tokens or a wildcard of a subject."""

from __future__ import annotations

import re

from holdfast.backends.nats.protocol.keys import lock_key, register_key

NAMES = [
    "a",
    "A",
    "a/b",
    "a.b",
    "a=2Eb",
    "a b",
    "*",
    ">",
    "$JS",
    "",
    "=",
    "ä",
    "\0",
    "😀",
    "~",
    "%",
    "a\r\nb",
    "x" * 500,
    "y" * 500,
]


def test_every_name_has_a_key_of_its_own_in_two_tokens() -> None:
    keys = [lock_key(name) for name in NAMES] + [register_key(name) for name in NAMES]

    assert len(set(keys)) == len(keys)
    for key in keys:
        assert re.fullmatch(r"[a-z]+\.[-/_=A-Za-z0-9]{1,200}", key), key


def test_plain_names_stay_readable() -> None:
    assert lock_key("nightly-report/eu_1") == "lock.nightly-report/eu_1"
    assert lock_key("a.b c") == "lock.a=2Eb=20c"
