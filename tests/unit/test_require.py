"""A program requires guarantees. A store with weaker ones is refused: before its use, or when its server reports it."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any, get_type_hints

import pytest

import holdfast
from holdfast.guarantees import FROM_WEAK_TO_STRONG, Exclusion, Guarantees, Order, Requirements, Scope
from holdfast_lab.conformance.lab import Lab
from tests.support.faulty import Faults


@pytest.fixture(params=["Client", "AsyncClient"])
def make(request: pytest.FixtureRequest) -> Any:
    return getattr(holdfast, request.param)


def refused(pattern: str) -> Any:
    return pytest.raises(holdfast.ConfigurationError, match=pattern)


def test_every_promise_has_its_strength() -> None:
    kinds = get_type_hints(Guarantees)

    assert [*FROM_WEAK_TO_STRONG] == [*Guarantees._fields] == [*Requirements.__annotations__]
    for field, strengths in FROM_WEAK_TO_STRONG.items():
        assert set(strengths) == set(kinds[field])


@pytest.mark.parametrize(
    "require",
    [
        {},
        {"exclusion": "cache"},
        {"exclusion": "durable-authority", "order": "FIFO"},
        {"exclusion": Exclusion.BEST_EFFORT, "order": Order.STORE, "fence": "unconditional", "scope": "process"},
    ],
)
def test_a_store_with_the_required_or_stronger_guarantees_is_accepted(make: Any, require: Any) -> None:
    assert make("memory://", require=require).guarantees.scope is Scope.PROCESS


def test_a_store_that_promises_less_is_refused_with_the_names_of_sufficient_stores(make: Any) -> None:
    with refused("memory://") as caught:
        make("memory://", require={"exclusion": "consensus", "scope": "machine+user", "order": "FIFO"})

    assert str(caught.value) == (
        "memory:// promises less than is required: exclusion is durable-authority, not consensus; "
        "scope is process, not machine+user or better; these promise enough: etcd://, zookeeper://"
    )


def test_the_guarantees_are_those_of_the_method(make: Any) -> None:
    url = "etcd://one.example"
    make(url, require={"order": "FIFO"})
    with refused("order is none, not store's or better"):
        make(url, method="key", require={"order": "store's"})
    with refused(
        r"enough: postgresql://, .*, mysql://…\?method=row, etcd://, etcd://…\?method=key, zookeeper://, nats://$"
    ):
        make(
            "sqlite:///var/tmp/none.db", require={"scope": "network", "wake": "push", "exclusion": "durable-authority"}
        )


def test_no_password_is_shown(make: Any) -> None:
    with refused("etcd://user:\\*\\*\\*@one.example") as caught:
        make("etcd://user:secret@one.example?method=key", require={"order": "FIFO"})

    assert "secret" not in str(caught.value)


def test_the_names_of_sufficient_stores_need_no_driver() -> None:
    code = (
        "import sys, holdfast\n"
        "try: holdfast.Client('memory://', require={'scope': 'network'})\n"
        "except holdfast.ConfigurationError: pass\n"
        "else: sys.exit('not refused')\n"
        "drivers = {'redis', 'psycopg', 'pymysql', 'kazoo', 'sqlite3', 'asyncio'} & set(sys.modules)\n"
        "sys.exit(str(drivers) if drivers else 0)"
    )

    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_pickled_client_requires_the_same() -> None:
    with holdfast.Client("memory://", require={"order": "FIFO"}) as client:
        copy = pickle.loads(pickle.dumps(client))

    assert copy._required == client._required
    assert copy._required.least == {"order": Order.FIFO}
    copy.close()


async def test_a_server_that_reports_weaker_guarantees_is_refused_and_keeps_no_ticket(lab: Lab, faults: Faults) -> None:
    actor = lab.actor(require={"exclusion": "durable-authority"})
    held = await actor(lambda client: client.lock("before").acquire())
    faults.promises = held._engine.backend.guarantees._replace(exclusion=Exclusion.CACHE)

    for timeout in (0, None):
        with refused("exclusion is cache, not durable-authority or better; these promise enough: memory://"):
            await actor(lambda client, timeout=timeout: client.lock("a").acquire(timeout=timeout))
        assert (await lab.state("a")).holders == ()
    assert held.held  # earlier leases stay held

    faults.promises = None
    lease = await actor(lambda client: client.lock("a").acquire(timeout=0))
    await actor(lambda _: lease.release())


async def test_a_waiter_is_refused_too_and_loses_its_place(lab: Lab, faults: Faults) -> None:
    holder, waiter = lab.actor(), lab.actor(require={"exclusion": "durable-authority"})
    lease = await holder(lambda client: client.lock("a").acquire())
    faults.promises = lease._engine.backend.guarantees._replace(exclusion=Exclusion.BEST_EFFORT)

    with refused("exclusion is best-effort"):
        await waiter(lambda client: client.lock("a").acquire())

    assert (await lab.state("a")).waiters == ()
    assert lease.held
