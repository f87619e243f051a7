"""Hazard: behind PgBouncer in transaction mode, a lock depends on a session that belongs to all programs.

Each transaction may run in another session, with settings that another program has left there.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import BackendUnavailable, OutcomeUnknown
from holdfast.core.tickets import Claim
from tests.integration.conftest import OpenClient
from tests.support.intervals import assert_exclusive, report, turns_of
from tests.support.postgresql import shared
from tests.support.postgresql.driver import Driver
from tests.support.postgresql.pgbouncer import PgBouncer
from tests.support.postgresql.relay import Relay
from tests.support.postgresql.servers import Server
from tests.support.processes import WorkerPool, eventually, now
from tests.support.server_process import running

POOL = 5  # sessions, at most
SHORT = 1  # seconds, of PgBouncer's query_wait_timeout


@pytest.fixture
def narrow(server: Server, folder: Path) -> Iterator[PgBouncer]:
    """A pooler with one session, so that every program uses the same one."""
    with running(
        PgBouncer(folder / uuid.uuid4().hex, server, default_pool_size=1, query_wait_timeout=SHORT)
    ) as started:
        yield started


@pytest.fixture
def own_pooler(server: Server, folder: Path) -> Iterator[PgBouncer]:
    """A pooler that a test may stop and kill."""
    with running(PgBouncer(folder / uuid.uuid4().hex, server, default_pool_size=POOL)) as started:
        yield started


@pytest.fixture
def schema() -> str:
    return f"test_{uuid.uuid4().hex}"


def acquire_later(client: holdfast.Client, name: str) -> tuple[threading.Thread, list[holdfast.Lease | None]]:
    leases: list[holdfast.Lease | None] = []
    thread = threading.Thread(target=lambda: leases.append(client.lock(name).acquire(timeout=60)))
    thread.start()
    return thread, leases


def finish(thread: threading.Thread, leases: list[holdfast.Lease | None]) -> holdfast.Lease:
    thread.join(70)
    (lease,) = leases
    assert lease is not None
    lease.release()
    return lease


# ── the session ──────────────────────────────────────────────────────────────────────────────────────────────────────

_LEFT = {
    "synchronous_commit": "off",
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "search_path": "left_behind",
    "standard_conforming_strings": "off",
    "lock_timeout": "1ms",
    "statement_timeout": "1min",
    "role": "left_role",
}
_SESSION = """SELECT jsonb_build_object(
    'settings', (
        SELECT jsonb_object_agg(s.name, s.setting) FROM pg_catalog.pg_settings s
        WHERE s.name NOT LIKE 'plpgsql.%'  -- they appear when the language is loaded
    ),
    'role', current_user, 'pid', pg_catalog.pg_backend_pid(),
    'prepared', (SELECT count(*) FROM pg_catalog.pg_prepared_statements),
    'channels', (SELECT count(*) FROM pg_catalog.pg_listening_channels()),
    'locks', (SELECT count(*) FROM pg_catalog.pg_locks l WHERE l.locktype = 'advisory' AND l.pid = pg_backend_pid()),
    'temporary', (SELECT count(*) FROM pg_catalog.pg_class WHERE relpersistence = 't')
)"""
_RECORD = """CREATE FUNCTION {schema}.record() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {schema}.recorded SELECT
        current_user, current_setting('synchronous_commit'), current_setting('transaction_isolation'),
        current_setting('search_path'), current_setting('lock_timeout'), current_setting('statement_timeout');
    RETURN NULL;
END $$;
CREATE TABLE {schema}.recorded (u text, commit text, isolation text, path text, lock text, statement text);
CREATE TRIGGER record AFTER INSERT OR UPDATE ON {schema}.holdfast_locks
FOR EACH ROW EXECUTE FUNCTION {schema}.record()"""


def test_a_name_that_looks_like_placeholders_is_taken_literally(
    narrow: PgBouncer, open_client: OpenClient, schema: str
) -> None:
    client = open_client(narrow.url(pooler="transaction", schema=schema))
    name = "{schema} $1 $2 \\' \\"

    with client.lock(name, timeout=15) as lease:
        (holder,) = client.inspect(name).holders

    assert holder.fence == lease.fence


def test_a_grant_depends_on_no_setting_of_another_program_and_leaves_none(
    narrow: PgBouncer, server: Server, open_client: OpenClient, schema: str
) -> None:
    client = open_client(narrow.url(pooler="transaction", schema=schema))
    with client.lock("first", timeout=15):
        pass
    server.rows(_RECORD.replace("{schema}", schema))
    server.rows("DO $$ BEGIN CREATE ROLE left_role; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    with narrow.connect() as program:
        for name, value in _LEFT.items():
            program.execute(f"SET {name} = '{value}'")
        before = program.execute(_SESSION).fetchall()

        with client.lock("a'b\\", timeout=15) as lease:
            lease.renew()
            with client.rwlock("r").read(), client.lock_all(["x", "y"]):
                pass
            assert client.inspect("a'b\\").holders[0].fence == lease.fence

        assert program.execute(_SESSION).fetchall() == before
    recorded = server.rows(f"SELECT DISTINCT * FROM {schema}.recorded")  # noqa: S608  (our own digits)
    assert recorded == [("postgres", "on", "read committed", "pg_catalog, pg_temp", "0", "4500ms")]


def test_the_default_role_of_the_user_applies(server: Server, folder: Path, open_client: OpenClient) -> None:
    user, role = (f"{kind}_{uuid.uuid4().hex}" for kind in ("member", "owner"))
    server.rows(
        f"CREATE ROLE {role}; GRANT CREATE ON DATABASE postgres TO {role}; CREATE ROLE {user} LOGIN IN ROLE {role}"
    )
    server.rows(f"ALTER ROLE {user} SET role = {role}")
    with running(PgBouncer(folder / uuid.uuid4().hex, server, users=f'"postgres" ""\n"{user}" ""\n')) as pooler:
        url = pooler.url(pooler="transaction", schema=user).replace("postgres@", f"{user}@")
        client = open_client(url)
        with client.lock("a", timeout=15):
            pass
        client.close()

    owners = server.rows(f"SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname = '{user}'")  # noqa: S608
    assert owners == [(role,)]


def test_tables_are_created_without_a_trace_in_the_session(
    narrow: PgBouncer, open_client: OpenClient, schema: str
) -> None:
    with narrow.connect() as program:
        program.execute("SET search_path = nowhere")
        before = program.execute(_SESSION).fetchall()

        with open_client(narrow.url(pooler="transaction", schema=schema)).lock("a", timeout=15):
            pass

        assert program.execute(_SESSION).fetchall() == before


def test_acquire_and_release_cost_one_round_trip_each(server: Server, open_client: OpenClient) -> None:
    pooler = shared.pooler()
    with Relay(pooler.port) as relay:
        url = shared.fresh_pooled_url(sslmode="disable").replace(f":{pooler.port}/", f":{relay.port}/")
        lock = open_client(url).lock("a", timeout=0)
        with lock:  # connects and creates the tables
            pass

        relay.round_trips = 0
        lease = lock.acquire()
        taken, relay.round_trips = relay.round_trips, 0
        assert lease is not None
        lease.release()

        assert (taken, relay.round_trips) == (1, 1)


@pytest.mark.parametrize("mode", ["statement", "session"])
def test_the_option_works_with_other_modes_of_the_pooler(
    mode: str, server: Server, folder: Path, open_client: OpenClient, schema: str
) -> None:
    with running(PgBouncer(folder / uuid.uuid4().hex, server, pool_mode=mode)) as pooler:
        url = pooler.url(pooler="transaction", schema=schema)
        holder, waiter = open_client(url), open_client(url)
        with holder.lock("a", timeout=15) as lease:
            waiting = acquire_later(waiter, "a")
            eventually(lambda: len(holder.inspect("a").waiters) == 1)

        assert finish(*waiting).fence > lease.fence
        holder.close()
        waiter.close()


# ── waiters ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_processes_exclude_each_other_within_the_limit_of_the_pool(
    own_pooler: PgBouncer, server: Server, pool: WorkerPool, schema: str
) -> None:
    workers = pool.start_many(8, own_pooler.url(pooler="transaction", schema=schema))

    start = now() + 0.3
    for worker in workers:
        worker.send("turns", lock="one", start=start, seconds=3.0, hold=0.001)
    most = 0
    while now() < start + 3.0:
        most = max(most, len(server.clients(f"%{schema}%")))
    turns = turns_of(worker.receive(within=60)["turns"] for worker in workers)

    assert_exclusive(turns)
    assert 0 < most <= POOL
    report(f"{len(turns)} turns of 8 processes; {most} connections to the server, {POOL} allowed")


@pytest.mark.parametrize("first", ["pooled", "direct"])
def test_waiters_with_and_without_a_pooler_share_one_queue(
    first: str, open_client: OpenClient, server: Server, schema: str
) -> None:
    """A client behind a pooler has no session, which must not look like a dead client to the others."""
    urls = {
        "pooled": shared.pooler().url(pooler="transaction", schema=schema),
        "direct": server.url_of("postgres", schema=schema),
    }
    second = next(kind for kind in urls if kind != first)
    holder = open_client(urls["direct"])
    order: list[str] = []
    threads = []

    def wait(kind: str) -> None:
        with open_client(urls[kind]).lock("a", timeout=60):
            order.append(kind)

    with holder.lock("a", timeout=15):
        for number, kind in enumerate((first, second), start=1):
            threads.append(threading.Thread(target=wait, args=(kind,)))
            threads[-1].start()
            # mypy does not infer the type of a lambda with a default.
            eventually(lambda number=number: len(holder.inspect("a").waiters) == number)  # type: ignore[misc]
    for thread in threads:
        thread.join(70)

    assert order == [first, second]


# ── failures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def open_driver() -> Iterator[Callable[[str], Driver]]:
    """Opens drivers, whose requests are not repeated by an engine."""
    with contextlib.ExitStack() as stack:
        yield lambda url: stack.enter_context(contextlib.closing(Driver(url)))


def test_a_request_that_gets_no_session_in_time_has_changed_nothing(
    narrow: PgBouncer, open_driver: Callable[[str], Driver], schema: str
) -> None:
    driver = open_driver(narrow.url(pooler="transaction", schema=schema))
    first, ticket = driver.tickets(["a", "b"])
    driver.try_acquire(first)
    with narrow.connect() as program, program.transaction():
        program.execute("SELECT 1")

        with pytest.raises(BackendUnavailable, match="query_wait_timeout"):
            driver.try_acquire(ticket)

    assert not ticket.unanswered
    assert driver.held() == ["a"]


def test_requests_have_changed_nothing_while_the_server_is_down(
    folder: Path, open_driver: Callable[[str], Driver]
) -> None:
    with (
        running(Server(folder / uuid.uuid4().hex)) as server,
        running(PgBouncer(folder / uuid.uuid4().hex, server, query_wait_timeout=SHORT, server_login_retry=1)) as pooler,
    ):
        driver = open_driver(pooler.url(pooler="transaction"))
        held, ticket = driver.tickets(["a", "b"])
        driver.try_acquire(held)
        server.kill()

        for _ in range(3):  # the first waits for a session, the others are refused
            with pytest.raises(BackendUnavailable):
                driver.try_acquire(ticket)
        server.start()

        eventually(lambda: _renews(driver, held))
        assert driver.held() == ["a"]


def _renews(driver: Driver, ticket: Claim) -> bool:
    try:
        return driver.renew(ticket)
    except BackendUnavailable:
        return False


@pytest.mark.parametrize("how", ["session", "pooler"])
def test_a_request_that_is_cut_off_has_an_unknown_outcome(
    how: str, own_pooler: PgBouncer, server: Server, open_driver: Callable[[str], Driver], schema: str
) -> None:
    driver = open_driver(own_pooler.url(pooler="transaction", schema=schema))
    ticket, other = driver.tickets(["a", "a"])
    driver.try_acquire(ticket)
    driver.release([ticket])
    errors: list[Exception] = []

    def acquire() -> None:
        try:
            driver.try_acquire(other)
        except holdfast.HoldfastError as error:
            errors.append(error)

    thread = threading.Thread(target=acquire)
    with server.connect() as blocker, blocker.transaction():
        blocker.execute(f"SELECT FROM {schema}.holdfast_locks FOR UPDATE")
        thread.start()
        eventually(lambda: server.is_blocked(f"%{schema}%"))
        if how == "pooler":
            own_pooler.kill()
        else:
            server.terminate(f"%{schema}%")
        thread.join(30)
    if how == "pooler":
        own_pooler.start()

    assert [type(error) for error in errors] == [OutcomeUnknown]
    assert other.unanswered


def test_a_restart_of_the_pooler_loses_no_lease_and_no_place(
    own_pooler: PgBouncer, open_client: OpenClient, schema: str
) -> None:
    url = own_pooler.url(pooler="transaction", schema=schema)
    holder, waiter = open_client(url), open_client(url)
    lease = holder.lock("a").acquire(timeout=15)
    assert lease is not None
    waiting = acquire_later(waiter, "a")
    eventually(lambda: len(holder.inspect("a").waiters) == 1)

    own_pooler.restart()

    lease.renew()
    assert len(holder.inspect("a").waiters) == 1
    lease.release()
    assert finish(*waiting).fence > lease.fence


def test_requests_wait_while_the_pooler_is_paused(own_pooler: PgBouncer, open_client: OpenClient, schema: str) -> None:
    client = open_client(own_pooler.url(pooler="transaction", schema=schema))
    with client.lock("a", timeout=15):
        pass
    own_pooler.admin("PAUSE")
    waiting = acquire_later(client, "a")
    eventually(lambda: any(row["cl_waiting"] for row in own_pooler.admin("SHOW POOLS")))

    own_pooler.admin("RESUME")

    finish(*waiting)


def test_a_pooler_that_accepts_no_more_clients_is_unavailable(
    server: Server, folder: Path, open_client: OpenClient, schema: str
) -> None:
    with running(PgBouncer(folder / uuid.uuid4().hex, server, max_client_conn=1)) as pooler, pooler.connect():
        client = open_client(pooler.url(pooler="transaction", schema=schema))

        with pytest.raises(BackendUnavailable, match="max_client_conn"):
            client.lock("a").acquire(timeout=0)


# ── the command line ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_command_line_works_through_the_pooler() -> None:
    url = shared.fresh_pooled_url()

    def run(*words: str) -> str:
        command = [sys.executable, "-m", "holdfast", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("init", url)
    with holdfast.Client(url) as client, client.lock("nightly", timeout=15) as lease:
        assert "nightly" in run("ls", "--url", url)
        assert str(lease.fence) in run("show", "--url", url, "nightly")
    assert "ran" in run("run", "--url", url, "--once", "key", "--", "echo", "ran")
