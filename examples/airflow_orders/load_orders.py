"""The work of orders_dag.py, without Airflow: load the orders of a day into a warehouse, one loader at a time.

$HOLDFAST_URL is the store of the locks, $WAREHOUSE_DB the database: a file of sqlite with the tables `source` and
`orders`.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3

import holdfast
from holdfast.fencing.sql import SQLiteGuard

LOCK = "warehouse:orders"
guard = SQLiteGuard()


def load_orders(day: str) -> int:
    """Replace the orders of this day. Returns their number.

    Raises:
        AcquireTimeout: another loader holds the lock for ten minutes.
        LockLost: the lease has ended before the load; nothing is changed.
    """
    # The client is made here and not at the level of the module: Airflow imports the file of a DAG again and again, in
    # processes that never run the task, and those may have no URL of the store.
    with (
        contextlib.closing(sqlite3.connect(os.environ["WAREHOUSE_DB"], check_same_thread=False)) as warehouse,
        holdfast.Client(ttl=10) as client,  # the lock of a killed worker is free after at most 10 s
    ):

        def cancel(_lost: holdfast.Lease) -> None:
            """Called in a thread of holdfast as soon as the lease is lost: the statement that runs now fails."""
            warehouse.interrupt()  # with psycopg: connection.cancel()

        @client.locked(LOCK, timeout="10m", lease="lease", on_lost=cancel)
        def load(lease: holdfast.Lease) -> int:
            with warehouse:  # a transaction: an error rolls it back
                cursor = warehouse.cursor()
                guard.create(cursor)
                guard.check(cursor, LOCK, lease.fence)  # StaleFence if a newer loader has written
                cursor.execute("DELETE FROM orders WHERE day = ?", (day,))
                try:
                    cursor.execute("INSERT INTO orders SELECT day, number FROM source WHERE day = ?", (day,))
                finally:
                    lease.check()  # before the commit; LockLost also says why the statement was interrupted
                return cursor.rowcount

        return load()
