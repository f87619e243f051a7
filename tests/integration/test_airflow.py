"""Hazard: two loaders of examples/airflow_orders write at the same time, or one commits after it has lost its lock.

Airflow needs more than 100 packages, so it is not installed for these tests: they run the function that the task calls.
With a Python that has Airflow 3 and holdfast, the DAG itself runs too:

    HOLDFAST_TEST_AIRFLOW=/path/to/python pytest tests/integration/test_airflow.py
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import holdfast
from tests.support.celery import load
from tests.support.processes import PATIENCE, eventually

EXAMPLE = Path(__file__).parents[2] / "examples" / "airflow_orders"
AIRFLOW = os.environ.get("HOLDFAST_TEST_AIRFLOW")
DAY = "2026-01-31"


class Warehouse:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._run("CREATE TABLE source (day, number)", "CREATE TABLE orders (day, number)")
        self._run("INSERT INTO source VALUES ('2026-01-31', 1), ('2026-01-31', 2), ('2026-02-01', 3)")

    def make_source_endless(self) -> None:
        numbers = "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers) SELECT"
        self._run("DROP TABLE source", f"CREATE VIEW source AS {numbers} '{DAY}' AS day, n AS number FROM numbers")

    def orders(self) -> list[tuple[str, int]]:
        return self._run("SELECT day, number FROM orders ORDER BY number")

    def _run(self, *statements: str) -> list[Any]:
        with contextlib.closing(sqlite3.connect(self.path)) as database, database:
            return [row for statement in statements for row in database.execute(statement)]


@pytest.fixture
def warehouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    monkeypatch.setenv("WAREHOUSE_DB", str(tmp_path / "warehouse.db"))
    monkeypatch.setenv("HOLDFAST_URL", f"sqlite://{tmp_path}/locks.db")
    return Warehouse(tmp_path / "warehouse.db")


@pytest.fixture
def module() -> Any:
    return load(EXAMPLE / "load_orders.py", "load_orders", {})


def test_a_second_load_of_a_day_replaces_the_first(warehouse: Warehouse, module: Any) -> None:
    assert [module.load_orders(DAY), module.load_orders(DAY)] == [2, 2]

    assert warehouse.orders() == [(DAY, 1), (DAY, 2)]


def test_a_load_waits_for_another_loader(warehouse: Warehouse, module: Any) -> None:
    with ThreadPoolExecutor(1) as threads, holdfast.Client() as client:
        with client.lock(module.LOCK):
            loading = threads.submit(module.load_orders, DAY)
            eventually(lambda: len(client.inspect(module.LOCK).waiters) == 1)
            assert warehouse.orders() == []
        assert loading.result(PATIENCE) == 2


def test_a_lost_lease_interrupts_the_statement_and_nothing_is_written(
    warehouse: Warehouse, module: Any, tmp_path: Path
) -> None:
    warehouse.make_source_endless()
    with ThreadPoolExecutor(1) as threads, holdfast.Client() as client:
        loading = threads.submit(module.load_orders, DAY)
        eventually(lambda: client.inspect(module.LOCK).holders != ())
        (tmp_path / "locks.db").unlink()

        with pytest.raises(holdfast.LockLost):
            loading.result(PATIENCE)
    assert warehouse.orders() == []


def test_the_files_are_imported_without_a_store() -> None:
    """As the DAG processor of Airflow does."""
    code = "import load_orders; compile(open('orders_dag.py').read(), 'orders_dag.py', 'exec')"
    environment = {"PATH": os.defpath, "HOLDFAST_REQUIRE_URL": "1", "PYTHONDONTWRITEBYTECODE": "1"}

    subprocess.run([sys.executable, "-c", code], cwd=EXAMPLE, env=environment, check=True)


def test_the_guide_has_the_code_of_the_example() -> None:
    guide = (EXAMPLE.parents[1] / "docs" / "airflow.md").read_text()
    work, dag = ((EXAMPLE / name).read_text() for name in ("load_orders.py", "orders_dag.py"))

    assert work[work.index("import contextlib") :] in guide
    assert dag[dag.index("with DAG(") : dag.index("\nif __name__")] in guide


@pytest.mark.skipif(AIRFLOW is None, reason="HOLDFAST_TEST_AIRFLOW names no Python with Airflow")
@pytest.mark.timeout(600)
def test_airflow_runs_the_dag(warehouse: Warehouse, tmp_path: Path) -> None:
    variables = {"AIRFLOW_HOME": str(tmp_path / "airflow"), "AIRFLOW__CORE__DAGS_FOLDER": str(EXAMPLE)}
    environment = {**os.environ, **variables, "AIRFLOW__CORE__LOAD_EXAMPLES": "False", "PYTHONDONTWRITEBYTECODE": "1"}
    assert AIRFLOW is not None
    subprocess.run([AIRFLOW, "-m", "airflow", "db", "migrate"], env=environment, check=True)

    subprocess.run([AIRFLOW, EXAMPLE / "orders_dag.py", DAY], env=environment, check=True)

    assert warehouse.orders() == [(DAY, 1), (DAY, 2)]
