"""Hazard: a guard that takes something for a fence which no lease has guards nothing."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.fencing import files
from holdfast.fencing.redis import RedisGuard
from holdfast.fencing.sql import MySQLGuard, PostgreSQLGuard, SQLiteGuard


@pytest.mark.parametrize("fence", [0, -1, True, None, "7", 7.0, 2**63])
def test_what_is_no_fence_is_refused_before_anything_is_asked(fence: Any, tmp_path: Path) -> None:
    nothing: Any = object()

    with pytest.raises(holdfast.ConfigurationError, match="fence"):
        SQLiteGuard().check(nothing, "stock", fence)
    with pytest.raises(holdfast.ConfigurationError, match="fence"):
        SQLiteGuard().check_updated(nothing, "stock", fence)
    with pytest.raises(holdfast.ConfigurationError, match="fence"):
        RedisGuard(type("Client", (), {"eval": None})).write(fence, "SET", "stock", 1)
    with pytest.raises(holdfast.ConfigurationError, match="fence"):
        files.replace(tmp_path / "a", b"", fence=fence)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("resource", ["", "x" * 513, b"stock", None, "\ud800"])
def test_what_is_no_name_of_a_resource_is_refused(resource: Any) -> None:
    with pytest.raises(holdfast.ConfigurationError, match="resource"):
        SQLiteGuard().check(object(), resource, 1)


@pytest.mark.parametrize("name", ["a b", "a;b", "", 'a"', "a.b.c", "1a", None])
def test_tables_and_columns_are_plain_names(name: Any) -> None:
    with pytest.raises(holdfast.ConfigurationError, match="table"):
        SQLiteGuard(table=name)
    with pytest.raises(holdfast.ConfigurationError, match="column"):
        SQLiteGuard().column(name)


def test_the_texts_have_the_marks_of_the_driver() -> None:
    assert PostgreSQLGuard().column("f") == ("f = %s", "(f IS NULL OR f <= %s)")
    assert MySQLGuard(paramstyle="qmark").column() == ("fence = ?", "(fence IS NULL OR fence <= ?)")
    assert "CREATE TABLE IF NOT EXISTS app.fences " in PostgreSQLGuard(table="app.fences").ddl
    with pytest.raises(holdfast.ConfigurationError, match="paramstyle"):
        SQLiteGuard(paramstyle="named")


def test_the_table_may_be_created_again() -> None:
    connection = sqlite3.connect(":memory:")
    SQLiteGuard().create(connection.cursor())

    SQLiteGuard().create(connection.cursor())

    SQLiteGuard().check(connection.cursor(), "stock", 1)
    connection.close()
