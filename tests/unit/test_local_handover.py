"""Hazard: the `info` of a ticket that several callers use loses the user's meta, or is not JSON any more."""

from __future__ import annotations

import json

from holdfast.core.local_handover import without_caller


def test_the_name_of_the_caller_is_removed_once_and_a_key_of_the_meta_stays() -> None:
    who, meta = {"host": "web", "pid": 7}, {"job": 1, "caller": 'a "name"'}
    info = json.dumps({"who": who, "caller": "7-1", "meta": meta})

    removed = without_caller(info)

    assert json.loads(removed) == {"who": who, "meta": meta}
    assert without_caller(removed) == removed
