"""In the caller's own transaction: once for a key, as a row of a table, and locks that end with the transaction.

    with psycopg.connect(url) as connection:                    # one transaction
        if holdfast.sql.once(connection, f"invoice:{invoice}"):
            connection.execute("UPDATE accounts SET …")

There is no client, no lease and no fence: the database ends the locks of a transaction with it, and keeps its rows only
if it is committed, even if the process dies. docs/once-sql.md explains `once`, docs/xact-lock.md explains `xact_lock`.
"""

from holdfast.sql.keys import TABLE, create_table, ddl, forget_older_than, once, once_async
from holdfast.sql.locks import xact_lock, xact_lock_async

__all__ = [
    "TABLE",
    "create_table",
    "ddl",
    "forget_older_than",
    "once",
    "once_async",
    "xact_lock",
    "xact_lock_async",
]
