"""Hazard: a property that one of several servers does not report is assumed to have its better value."""

from __future__ import annotations

import pytest

from holdfast.backends.redis.protocol.guarantees import GUARANTEES
from holdfast.backends.redis.protocol.server_info import ServerInfo, guarantees_on, weakest
from holdfast.guarantees import Exclusion

DURABLE = ServerInfo.of(
    {"redis_version": "7.2.4", "connected_slaves": "0", "maxmemory_policy": "noeviction", "aof_enabled": "1"}, "always"
)
UNKNOWN = ServerInfo.of({}, None)
EVICTS = DURABLE._replace(policy="allkeys-lru")
FSYNC_UNKNOWN = DURABLE._replace(keeps_every_write=None)
FORGETS = DURABLE._replace(keeps_every_write=False)


@pytest.mark.parametrize(
    ("servers", "exclusion"),
    [
        ([DURABLE, DURABLE], Exclusion.DURABLE_AUTHORITY),
        ([DURABLE, UNKNOWN], Exclusion.CACHE),
        ([DURABLE, EVICTS], Exclusion.CACHE),
        ([UNKNOWN, EVICTS], Exclusion.CACHE),
        ([DURABLE, FSYNC_UNKNOWN], Exclusion.BEST_EFFORT),
        ([FSYNC_UNKNOWN, FORGETS], Exclusion.BEST_EFFORT),
    ],
)
def test_the_weakest_server_decides(servers: list[ServerInfo], exclusion: Exclusion) -> None:
    for order in (servers, servers[::-1]):
        assert guarantees_on(GUARANTEES["queue"], weakest(order)).exclusion is exclusion


def test_a_property_that_one_server_does_not_report_is_not_known() -> None:
    assert weakest([DURABLE, FSYNC_UNKNOWN]).keeps_every_write is None
    assert weakest([FORGETS, FSYNC_UNKNOWN]).keeps_every_write is False
    assert weakest([DURABLE, UNKNOWN]).policy is None
    assert weakest([UNKNOWN, EVICTS]).policy == "allkeys-lru"
    assert not weakest([DURABLE, UNKNOWN]).has_sharded_channels


def test_warnings_name_what_is_not_known() -> None:
    assert not DURABLE.warnings
    assert not FORGETS.warnings
    assert ["maxmemory-policy" in warning for warning in UNKNOWN.warnings] == [True]
    assert ["appendfsync" in warning for warning in FSYNC_UNKNOWN.warnings] == [True]
