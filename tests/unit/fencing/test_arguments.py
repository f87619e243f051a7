"""Hazard: a guard accepts a value that is not the fence of a lease, and protects nothing."""

from __future__ import annotations

import sqlite3

import pytest

import holdfast
from holdfast.fencing.sql import MySQLGuard, PostgreSQLGuard, SQLiteGuard


def test_sql_texts_use_the_parameter_style_of_the_driver() -> None:
    assert PostgreSQLGuard().column("f") == ("f = %s", "(f IS NULL OR f <= %s)")
    assert MySQLGuard(paramstyle="qmark").column() == ("fence = ?", "(fence IS NULL OR fence <= ?)")
    assert "CREATE TABLE IF NOT EXISTS app.fences " in PostgreSQLGuard(table="app.fences").ddl
    with pytest.raises(holdfast.ConfigurationError, match="paramstyle"):
        SQLiteGuard(paramstyle="named")


def test_create_is_idempotent() -> None:
    connection = sqlite3.connect(":memory:")
    SQLiteGuard().create(connection.cursor())

    SQLiteGuard().create(connection.cursor())

    SQLiteGuard().check(connection.cursor(), "stock", 1)
    connection.close()


def test_a_refused_fence_names_both_causes() -> None:
    connection = sqlite3.connect(":memory:")
    SQLiteGuard().create(connection.cursor())
    SQLiteGuard().check(connection.cursor(), "stock", 7)

    with pytest.raises(holdfast.StaleFence, match="another holder since, or its store was changed or reset"):
        SQLiteGuard().check(connection.cursor(), "stock", 6)

    connection.close()
