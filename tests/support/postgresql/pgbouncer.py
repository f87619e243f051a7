"""PgBouncer, a pooler between clients and a PostgreSQL server."""

from __future__ import annotations

from pathlib import Path

import psycopg

from tests.support.postgresql.servers import Server
from tests.support.server_process import ServerProcess, program


class PgBouncer(ServerProcess):
    """A pooler before a server, in transaction mode; `settings` are added to its settings.

    It logs in with the passwords in `users`. Its clients need none.
    """

    refuses_root = True
    errors = (psycopg.OperationalError,)

    def __init__(self, folder: Path, server: Server, users: str = '"postgres" ""\n', **settings: str | int) -> None:
        super().__init__(folder)
        self._users = users
        self._server, self._settings = server, {"pool_mode": "transaction", "max_client_conn": 500, **settings}

    def create(self) -> None:
        super().create()
        self._write("users", self._users)
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": self.port,
            "unix_socket_dir": "",
            "auth_type": "trust",
            "auth_file": self.folder / "users",
            "admin_users": "postgres",
            **self._settings,
        }
        lines = "\n".join(f"{name} = {value}" for name, value in settings.items())
        target = f"host=127.0.0.1 port={self._server.port}"
        self._write("pgbouncer.ini", f"[databases]\n* = {target}\n[pgbouncer]\n{lines}\n")

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def command(self) -> list[str]:
        return [program("pgbouncer", package="PgBouncer"), "-q", str(self.folder / "pgbouncer.ini")]

    def answers(self) -> bool:
        self.admin("SHOW VERSION")
        return True

    def url(self, **options: str) -> str:
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres" + (f"?{query}" if query else "")

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        """A connection of another program to the database."""
        name = "test"  # otherwise the session keeps the name of the previous program
        return psycopg.connect(self.url(application_name=name), autocommit=True, prepare_threshold=None)

    def admin(self, command: str) -> list[dict[str, object]]:
        """Run a command of its console; return the rows, with their columns by name."""
        address = f"postgresql://postgres@127.0.0.1:{self.port}/pgbouncer"
        with psycopg.connect(address, autocommit=True, connect_timeout=5) as connection:
            cursor = psycopg.ClientCursor(connection, row_factory=psycopg.rows.dict_row)
            cursor.execute(command.encode())
            return cursor.fetchall() if cursor.description else []
