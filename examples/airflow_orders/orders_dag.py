"""A DAG whose task runs under a lock: no other DAG, backfill, Airflow or cron job loads at the same time.

Put this file and load_orders.py into the folder of DAGs of Airflow 3. To try it without a scheduler:

    python orders_dag.py 2026-01-31
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta

# Airflow is too large for the test environment of holdfast, so the type checker does not find it there.
from airflow.sdk import DAG, task  # pyright: ignore[reportMissingImports]

from load_orders import load_orders

with DAG("orders", schedule="@daily", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False) as orders:
    # A busy lock, a lost lease and a store that is down fail the attempt; Airflow tries again.
    load = task(retries=3, retry_delay=timedelta(minutes=5), execution_timeout=timedelta(hours=1))(load_orders)
    load("{{ ds }}")  # the day of the run

if __name__ == "__main__":
    orders.test(logical_date=datetime.fromisoformat(sys.argv[1]).replace(tzinfo=UTC))
