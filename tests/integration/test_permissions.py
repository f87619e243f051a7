"""Hazard: a missing permission looks like a busy lock or a server that is down, or a lease outlives its permission."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest

import holdfast
from holdfast.cli import main, statuses
from holdfast.url import parse
from tests.integration.conftest import OpenClient
from tests.support.etcd import shared as etcd
from tests.support.mysql import shared as mysql
from tests.support.permissions import use_everything
from tests.support.postgresql import shared as postgresql
from tests.support.processes import PATIENCE, eventually
from tests.support.redis import shared as redis
from tests.support.zookeeper import shared as zookeeper


class Account(NamedTuple):
    """A user with the least permissions, which an administrator revokes and grants again."""

    url: str
    deny: Callable[[], None]
    allow: Callable[[], None]
    message: str  # what its errors name


def redis_user(method: str) -> Account:
    url = redis.restricted_url(method=method)
    prefix = parse(url).options["prefix"]

    def set_keys(*rules: str) -> None:
        redis.server().call("ACL", "SETUSER", prefix.removesuffix(":"), *rules)

    return Account(url, lambda: set_keys("resetkeys"), lambda: set_keys(f"~{prefix}*"), "the keys ~prefix")


def postgresql_role(method: str) -> Account:
    url = postgresql.restricted_url(method=method)
    schema = parse(url).options["schema"]

    def deny() -> None:
        postgresql.server().rows(f"REVOKE ALL ON ALL TABLES IN SCHEMA {schema} FROM app".encode())

    def allow() -> None:
        for grant in postgresql.grants_on(schema)[1:]:
            postgresql.server().rows(grant.encode())

    return Account(url, deny, allow, "USAGE on the schema")


def mysql_user(method: str) -> Account:
    url = mysql.restricted_url(method=method)
    database = parse(url).path.removeprefix("/")

    def allow() -> None:
        mysql.server().run(*mysql.grants_on(database, method))

    revoke = "REVOKE ALL PRIVILEGES, GRANT OPTION FROM app@'%'"
    return Account(url, lambda: mysql.server().run(revoke), allow, "SELECT, INSERT, UPDATE, DELETE and EXECUTE")


@contextlib.contextmanager
def etcd_user(method: str) -> Iterator[Account]:
    server = etcd.restricted_server()

    def allow() -> None:
        etcd.run_etcdctl(server, "etcdctl role grant-permission locks readwrite --prefix=true test-", as_root=True)

    def deny() -> None:
        etcd.run_etcdctl(server, "etcdctl role revoke-permission locks --prefix=true test-", as_root=True)

    yield Account(etcd.restricted_url(server, method=method), deny, allow, "readwrite on all keys")
    allow()  # the role is shared with other tests


def zookeeper_user() -> Account:
    url = zookeeper.restricted_url()
    root = parse(url).path

    def deny() -> None:
        zookeeper.set_acls(root, "digest:admin:")

    def allow() -> None:
        zookeeper.set_acls(root, "digest:app:")

    return Account(url, deny, allow, "add the user to its ACL")


ACCOUNTS: dict[str, Callable[[], Account | contextlib.AbstractContextManager[Account]]] = {
    "redis": lambda: redis_user("queue"),
    "redis-setnx": lambda: redis_user("setnx"),
    "redis-getset": lambda: redis_user("getset"),
    "postgresql": lambda: postgresql_role("queue"),
    "postgresql-advisory": lambda: postgresql_role("advisory"),
    "mysql": lambda: mysql_user("unique"),
    "mysql-row": lambda: mysql_user("row"),
    "mysql-version": lambda: mysql_user("version"),
    "etcd": lambda: etcd_user("queue"),
    "etcd-key": lambda: etcd_user("key"),
    "zookeeper": zookeeper_user,
}


@pytest.fixture(params=ACCOUNTS)
def account(request: pytest.FixtureRequest) -> Iterator[Account]:
    made = ACCOUNTS[request.param]()
    if isinstance(made, Account):
        yield made
    else:
        with made as account:
            yield account


@pytest.mark.parametrize("timeout", [0, 60, None])
def test_an_acquire_names_the_permission_when_it_is_missing(
    account: Account, open_client: OpenClient, timeout: float | None
) -> None:
    client = open_client(account.url)
    account.deny()

    with pytest.raises(holdfast.AccessDenied, match=account.message) as refused:
        client.lock("a").acquire(timeout=timeout)

    assert isinstance(refused.value, holdfast.ConfigurationError)
    assert "secret" not in str(refused.value)
    account.allow()
    with client.lock("a", timeout=PATIENCE):
        pass


def test_a_waiter_gets_the_error_at_once_when_the_permission_is_removed(
    account: Account, open_client: OpenClient
) -> None:
    holder, waiter = open_client(account.url), open_client(account.url)
    lease = holder.lock("a").acquire()
    assert lease is not None
    queued: list[holdfast.Event] = []
    waiter.subscribe(lambda event: queued.append(event) if event.kind == "queued" else None)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: waiter.lock("a").acquire(timeout=None))
        eventually(lambda: bool(queued))
        account.deny()
        error = waiting.exception(PATIENCE)

    account.allow()
    assert isinstance(error, holdfast.AccessDenied)
    lease.release()


def test_a_lease_is_lost_at_its_deadline_when_the_permission_is_removed(
    account: Account, open_client: OpenClient, caplog: pytest.LogCaptureFixture
) -> None:
    client = open_client(account.url)
    events: list[holdfast.Event] = []
    client.subscribe(events.append)
    lease = client.lock("a", ttl=2.0).acquire()
    assert lease is not None
    account.deny()

    assert lease.wait_lost(PATIENCE)

    with pytest.raises(holdfast.LockLost):
        lease.check()
    eventually(lambda: "lost" in {event.kind for event in events})
    failed = next(event for event in events if event.kind == "renewal failed")
    assert failed.outcome == "AccessDenied"
    assert any(record.levelname == "WARNING" and account.message in record.getMessage() for record in caplog.records)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    account.allow()
    with client.lock("a", timeout=PATIENCE) as other:
        assert other.fence > lease.fence


def test_a_refused_release_is_repeated_until_it_is_permitted(account: Account, open_client: OpenClient) -> None:
    client, other = open_client(account.url), open_client(account.url)
    lease = client.lock("a", ttl=30).acquire()
    assert lease is not None
    account.deny()
    with pytest.raises(holdfast.AccessDenied):
        lease.release()

    account.allow()

    with other.lock("a", timeout=20):  # less than the ttl: the release has been repeated
        pass


@pytest.mark.parametrize("kind", ["read", "write"])
def test_a_role_of_etcd_needs_to_read_and_to_write(open_client: OpenClient, kind: str) -> None:
    with etcd_user("queue") as account:
        account.deny()
        server = etcd.restricted_server()
        etcd.run_etcdctl(server, f"etcdctl role grant-permission locks {kind} --prefix=true test-", as_root=True)

        with pytest.raises(holdfast.AccessDenied, match="readwrite"):
            open_client(account.url).lock("a").acquire(timeout=0)

        account.deny()


def test_the_root_node_of_zookeeper_needs_create_and_read(open_client: OpenClient) -> None:
    url = zookeeper.restricted_url()
    client = open_client(url)

    zookeeper.set_acl(parse(url).path, "digest:app:", "r")
    with pytest.raises(holdfast.AccessDenied, match="add the user to its ACL"):
        client.lock("a").acquire(timeout=0)
    zookeeper.set_acl(parse(url).path, "digest:app:", "c")
    with client.lock("a", timeout=0), pytest.raises(holdfast.AccessDenied, match="add the user to its ACL"):
        client.locks()
    zookeeper.set_acl(parse(url).path, "digest:app:", "cr")

    with client.lock("a", timeout=0):
        assert [info.name for info in client.locks()] == ["a"]


def test_use_everything_works_with_the_permissions_of_the_docs() -> None:
    use_everything(etcd.restricted_url())
    use_everything(zookeeper.restricted_url())


def test_elections_and_once_do_not_wait_for_a_missing_permission(open_client: OpenClient) -> None:
    account = redis_user("queue")
    client = open_client(account.url)
    account.deny()

    with pytest.raises(holdfast.AccessDenied):
        client.election("scheduler").run(lambda _: None)
    with pytest.raises(holdfast.AccessDenied):
        client.once("key").run(lambda: None)


@pytest.mark.parametrize("command", [("ls",), ("show", "a"), ("run", "a", "--", "true")])
def test_a_command_reports_a_missing_permission_as_an_error_of_the_configuration(
    command: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    account = redis_user("queue")
    redis.server().call("ACL", "SETUSER", parse(account.url).options["prefix"].removesuffix(":"), "-@all", "+info")

    name, *words = command
    assert main([name, "--url", account.url, *words]) == statuses.USAGE

    assert "lacks a permission" in capfd.readouterr().err
