"""Every backend with the built-in faults of `holdfast verify`, on healthy servers with durable settings."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from holdfast_lab.verify.faults import FAULTS
from packages.lab.scenarios.scenario import Deployment, Scenario
from tests.support.etcd import servers as etcd
from tests.support.memcached import servers as memcached
from tests.support.mysql import servers as mysql
from tests.support.nats import servers as nats
from tests.support.postgresql import servers as postgresql
from tests.support.redis import servers as redis
from tests.support.redis.binaries import main_binary
from tests.support.redis.redlock import DURABLE, RedlockServers
from tests.support.redis.topologies import Cluster, Watched
from tests.support.server_process import running
from tests.support.zookeeper import ensembles as zookeeper


def _plain(
    name: str,
    text: str,
    make: Callable[[Path], Any],
    url: Callable[[Any], str] = lambda server: str(server.url),
    options: tuple[str, ...] = (),
) -> Scenario:
    @contextlib.contextmanager
    def deploy(folder: Path) -> Iterator[Deployment]:
        with running(make(folder / "server")) as server:
            yield Deployment(url(server))

    return Scenario(name, text, deploy, group="plain", options=options)


@contextlib.contextmanager
def _sqlite(folder: Path) -> Iterator[Deployment]:
    yield Deployment(f"sqlite://{folder}/locks.db")


def _redis(folder: Path) -> redis.Server:
    return redis.Server(main_binary(), folder, options=DURABLE)


def _postgresql(folder: Path) -> postgresql.Server:
    return postgresql.Server(folder, settings=("fsync=on", "full_page_writes=on"))


SCENARIOS = (
    Scenario("sqlite", "SQLite", _sqlite, group="plain"),
    _plain("redis", "Redis, `appendfsync always`", _redis),
    _plain("redis-setnx", "the same, `method=setnx`", _redis, lambda server: f"{server.url}?method=setnx"),
    _plain(
        "redis-getset",
        "the same, `method=getset`, which requires equal clocks of all clients: without the fault `clock`",
        _redis,
        lambda server: f"{server.url}?method=getset",
        options=tuple(word for name in FAULTS if name != "clock" for word in ("--only", name)),
    ),
    _plain("sentinel", "Redis with three Sentinels", lambda folder: Watched(main_binary(), folder)),
    _plain("cluster", "Redis Cluster of six", lambda folder: Cluster(main_binary(), folder)),
    _plain(
        "redlock",
        "Redlock, five Redis with `appendfsync always`, a ttl of 8 s and `node_timeout=2`: on a busy machine replies"
        " are late",
        lambda folder: RedlockServers(main_binary(), folder, DURABLE),
        lambda servers: str(servers.url(node_timeout=2)),
        options=("--ttl", "8"),
    ),
    _plain("postgresql", "PostgreSQL", _postgresql),
    _plain("mariadb", "MariaDB", mysql.Server),
    _plain("etcd", "etcd, three members", etcd.Trio),
    _plain("zookeeper", "ZooKeeper, three servers", zookeeper.Ensemble, lambda ensemble: str(ensemble.url())),
    _plain("memcached", "memcached", lambda _folder: memcached.Server()),
    _plain("nats", "NATS, one server", nats.Server),
    _plain("nats-cluster", "NATS, three servers", nats.Trio),
)
