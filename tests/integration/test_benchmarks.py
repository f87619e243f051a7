"""Hazards of benchmarks: a wrong median, an undetected overlap, a peer whose failure ends the run or is not shown, a
claim that is not measured, leftover processes. Times are never asserted.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pymysql
import pytest

from benchmarks import capacity, capacity_pages, capacity_stores, claims, figures, page, publish, runner
from benchmarks.__main__ import PUBLISHED, main
from benchmarks.contender import Arena, AsyncLocks, Contender, all_contenders, versions_before
from benchmarks.delay import delayed
from benchmarks.figures import Turn
from benchmarks.measure import FULL, QUICK, Effort, Measure, all_measures
from benchmarks.measures import contended
from benchmarks.plan import Case, Group, make_plan
from benchmarks.report import Report, outcome_table
from benchmarks.results import Outcome, Record
from benchmarks.schedule import Schedule, estimate
from benchmarks.servers import (
    Etcd,
    Mariadb,
    Memcached,
    Nats,
    Postgresql,
    Redis,
    RedisNodes,
    Server,
    ServerFailed,
    Zookeeper,
)
from benchmarks.summary import ROWS, summary_plot
from benchmarks.table import WIDTH, Row, Table
from tests.support.etcd import shared as etcd
from tests.support.memcached import shared as memcached
from tests.support.mysql import shared as mysql
from tests.support.nats import shared as nats
from tests.support.postgresql import shared as postgresql
from tests.support.processes import eventually
from tests.support.redis import shared as redis
from tests.support.zookeeper import shared as zookeeper
from tests.support.zookeeper.servers import kazoo

CORES = sorted(os.sched_getaffinity(0))
TINY = Effort(
    rounds=1,
    pairs_seconds=0.02,
    contended_seconds=0.4,  # halved for one process: still enough for a turn on a busy machine
    contended_rounds=1,
    crowds=(2,),
    back_to_back=True,
    waiters=(3,),
    settle_seconds=0.05,
    idle_seconds=0.05,
    leases=(20,),
    leases_ttl=0.3,
    long_rounds=1,
    imports=1,
)

# Of each measure, the cases whose code differs: threads and tasks, files and servers, servers that are far away. The
# adapters of the other stores are checked by `test_a_contender_acquires_and_releases`.
FEW = {
    "uncontended": ("uncontended/machine/pairs/holdfast", "uncontended/redlock/5ms-away/holdfast-redlock"),
    "many": ("many/machine/*/holdfast",),
    "contended": (
        "contended/tasks/*/holdfast",
        "contended/machine/2-hold-2ms/holdfast",
        "contended/redis/2-back-to-back/holdfast",
    ),
    "threads": ("threads/redis/lone/holdfast", "threads/redis/4x8-away/holdfast"),
    "waiters": ("waiters/machine/*/holdfast", "waiters/redis/*/holdfast-redis"),
    "leases": ("leases/*/*/holdfast",),
    "imports": ("imports/*/*/holdfast",),
}

needs_redis = pytest.mark.skipif(Redis().version() is None, reason="no redis-server on this machine")


# ── figures ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_figures_of_known_data() -> None:
    assert figures.median([3, 1, 2]) == 2
    assert figures.median([4, 1, 2, 3]) == 2.5
    assert figures.quantile(range(1, 101), 0.99) == 99
    assert figures.quantile(range(1, 1001), 0.99) == 990
    assert figures.quantile([7], 0.99) == 7
    assert figures.spread([90, 100, 110]) == pytest.approx(0.1)


def test_bounds_enclose_the_median_and_are_narrower_for_values_that_agree() -> None:
    close, apart = [0.74, 0.75, 0.75, 0.76, 0.75] * 4, [0.2, 0.75, 1.9, 0.5, 1.2] * 4

    for values in (close, apart):
        low, high = figures.bounds(values)
        assert min(values) <= low <= figures.median(values) <= high <= max(values)

    assert figures.bounds(close) == figures.bounds(close)
    assert figures.bounds(close)[1] - figures.bounds(close)[0] < figures.bounds(apart)[1] - figures.bounds(apart)[0]


def test_jains_index_is_one_for_equals_and_one_of_n_for_a_monopoly() -> None:
    assert figures.jain([5, 5, 5, 5]) == 1
    assert figures.jain([20, 0, 0, 0]) == 0.25
    assert figures.jain([1, 2, 3]) == pytest.approx(36 / 42)
    assert figures.jain([0, 0]) == 0


def test_turns_that_only_touch_do_not_overlap_but_a_planted_overlap_is_found() -> None:
    fine = [Turn(0, 0.0, 1.0, 2.0), Turn(1, 0.0, 2.0, 3.0), Turn(0, 2.0, 3.5, 4.0)]
    inside_a_long_one = [Turn(0, 0.0, 1.0, 9.0), Turn(1, 0.0, 2.0, 3.0), Turn(2, 0.0, 4.0, 5.0)]

    assert figures.overlaps(fine) == 0
    assert figures.overlaps(figures.in_order([*fine, Turn(2, 0.0, 2.9, 2.95)])) == 1
    assert figures.overlaps(inside_a_long_one) == 2


def test_gaps_and_changes_are_between_neighbours() -> None:
    turns = [Turn(0, 0.0, 1.0, 2.0), Turn(0, 2.0, 2.5, 3.0), Turn(1, 0.0, 3.25, 4.0)]

    assert figures.gaps(turns) == [0.5, 0.25]
    assert figures.changes(turns) == 0.5
    assert figures.changes(turns[:1]) == 0


def test_a_window_includes_waits_that_end_after_it() -> None:
    greedy = [Turn(0, at, at + 0.1, at + 1.0) for at in range(4)]
    starved = Turn(1, 0.0, 7.0, 7.1)

    judged = contended.judge([*greedy, starved], clients=2, begin=0.0, end=4.0)

    assert judged["overlaps"] == 0
    assert judged["jain"] == 0.5
    assert judged["wait_max"] == 7
    assert judged["held"] == pytest.approx(0.9)
    assert judged["turns"] == 1


def test_waits_are_compared_with_their_fair_share() -> None:
    turns = [Turn(at % 2, at * 3.0 - 3.0, at * 3.0, at * 3.0 + 2.0) for at in range(1, 11)]

    judged = contended.judge(turns, clients=2, begin=0.0, end=40.0)

    assert judged["gap_to_another"] == 1
    assert judged["fair_share"] == 6
    assert judged["wait_max_of_share"] == 0.5


def test_a_ratio_is_taken_within_each_round() -> None:
    mine, theirs = _record("holdfast sqlite", [10, 300]), _record("two SQLite statements", [5, 100])

    assert mine.ratio(theirs, "pair") == 2.5


# ── the output ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_table_in_text_and_in_markdown() -> None:
    table = Table("Speed", ["", "a pair\nµs"], [Row(["ours", "1.5"], mark="ours"), Row(["theirs"], "not installed")])

    assert table.to_text().splitlines() == [
        "Speed",
        "        a pair",
        "            µs",
        "──────────────",
        "ours       1.5",
        "theirs  not installed",
    ]
    assert "\x1b[1mours       1.5\x1b[0m" in table.to_text(color=True)
    assert table.to_markdown().splitlines()[2:] == [
        "|  | a pair µs |",
        "|---|--:|",
        "| **ours** | 1.5 |",
        "| theirs | not installed |",
    ]


def test_a_lock_with_two_holders_is_shown_as_broken() -> None:
    outcome = _outcome(_record("holdfast sqlite", [1]), _record("flock(2)", [1]))
    outcome.records[0].good[0]["overlaps"] = 3

    shown = outcome_table(outcome).to_text(color=True)

    assert "\x1b[1;31mholdfast sqlite" in shown
    assert "BROKEN: 3 turns overlapped" in shown


def test_a_table_shows_the_ratio_to_the_version_before_and_its_bounds() -> None:
    name = "holdfast sqlite"
    (before,) = versions_before([_contender(name)], "old")
    ours, earlier = _record(name, [1, 1, 1, 1, 1]), _record(name, [2, 4, 4, 4, 5])
    earlier.case = replace(earlier.case, contender=before)
    outcome = _outcome(ours, earlier, _record("filelock", [9, 9, 9, 9, 9]))
    outcome.group = replace(outcome.group, rounds=5)

    lines = outcome_table(outcome).to_text().splitlines()

    assert [line.split()[-2:] for line in lines if line.startswith(("holdfast", "filelock"))] == [
        ["0.250", "0.200-0.500"],
        ["-", "-"],
        ["-", "-"],
    ]
    assert "before" in lines[2]


def test_claims_are_judged_only_by_cases_that_were_run() -> None:
    ours, theirs, bare = "holdfast redis", "redis-py Lock", "two Connection calls"
    fine = [_outcome(_record(ours, [6, 5]), _record(theirs, [10, 10]))]
    slow = [_outcome(_record(ours, [9, 9]), _record(theirs, [10, 10]), _record(bare, [3, 3]))]

    (judged,) = claims.judge(fine)
    assert (judged.measured, judged.limit, judged.holds) == (0.55, 0.6, True)
    assert [claim.holds for claim in claims.judge(slow)] == [False, False]
    assert claims.judge([_outcome(_record("holdfast sqlite", [1]))]) == []
    assert "NO" in claims.claims_table(claims.judge(slow)).to_text()
    assert "NO" not in claims.claims_table(claims.judge(fine)).to_text()


def test_the_cost_of_waiting_is_claimed_as_a_ratio_of_many_to_few_waiters() -> None:
    measure, name = _measure("waiters"), "holdfast mysql"
    few, many = (
        Case(measure, setting, _contender(name)) for setting in measure.settings(FULL) if setting.slug in {"4", "64"}
    )
    outcomes = [
        _outcome(Record(few, [{"idle_commands": 50.0}, {"idle_commands": 70.0}])),
        _outcome(Record(many, [{"idle_commands": 150.0}])),
    ]

    (judged,) = claims.judge(outcomes)

    assert (judged.measured, judged.sense, judged.limit, judged.holds) == (2.5, "at most", 2.0, False)
    assert claims.judge(outcomes[:1]) == []
    assert claims.judge([_outcome(Record(few, [{"idle_commands": 0.0}])), outcomes[1]]) == []


def test_every_claim_names_existing_contenders_and_measures() -> None:
    outcomes = [
        Outcome(group, {}, [Record(case, [_ones(group.measure)]) for case in group.cases])
        for group in make_plan(all_measures(), all_contenders(), FULL)
    ]

    judged = claims.judge(outcomes)

    assert len(judged) == len(claims.CLAIMS)
    assert max(map(len, claims.claims_table(judged).to_text().splitlines())) <= WIDTH


def test_the_page_shows_only_published_plots(tmp_path: Path) -> None:
    text = Path(f"{PUBLISHED}.md").read_text()
    caption, file = page.IN_DOCS[0]
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    (folder / file).touch()

    fewer = page.with_plots(text, str(folder), "benchmarks")

    assert page.with_plots(text, PUBLISHED, "benchmarks") == text
    assert page.with_plots(fewer, PUBLISHED, "benchmarks") == text
    assert [line for line in fewer.splitlines() if line.startswith("![")] == [f"![{caption}](benchmarks/{file})"]


def test_a_full_run_draws_every_plot_of_the_page() -> None:
    outcomes = [
        Outcome(group, {}, [Record(case, [_ones(group.measure)]) for case in group.cases])
        for group in make_plan(all_measures(), all_contenders(), FULL)
    ]

    drawn = Report({}, FULL, [], outcomes).to_plots()
    assert {file for _, file in (*page.IN_DOCS, *page.IN_README)} <= set(drawn)
    texts = {element.text for element in ET.fromstring(drawn[page.SUMMARY]).iter() if element.tag.endswith("text")}  # noqa: S314  our own
    assert {label for label, _ in ROWS.values()} <= texts


def test_the_summary_is_of_locks_of_stores_only() -> None:
    assert summary_plot([_outcome(_record("threading.Lock", [1]))]) is None
    assert summary_plot([_outcome(_record("two Connection calls", [1]))]) is None
    assert summary_plot([_outcome(_record("holdfast redis", [1]), _record("redis-py Lock", [2]))]) is not None


def test_every_store_has_locks_of_ours_and_of_others_in_the_plan() -> None:
    plan = make_plan(all_measures(), all_contenders(), FULL)
    for measure in ("uncontended", "contended"):
        for group in plan:
            if group.measure.name == measure and group.setting.slug in {"pairs", "8-hold-2ms"}:
                locks = [
                    case.contender
                    for case in group.cases
                    if group.measure.cannot(case.contender, group.setting) is None
                ]
                assert {lock.ours for lock in locks} == {True, False}, group.slug
    assert {group.arena for group in plan if group.measure.name == "uncontended"} == set(Arena)


def test_a_run_of_some_tables_is_published_beside_the_others(tmp_path: Path) -> None:
    measures, contenders = all_measures(), all_contenders()
    order = make_plan(measures, contenders, FULL)
    chosen = [group for group in order if group.slug in {"uncontended-redis-pairs", "contended-etcd-8-hold-2ms"}]
    machine = {"date": "2026-01-01", "holdfast": "0.2.0", "load before": "0.10"}

    def outcomes(groups: Sequence[Group], value: float) -> list[Outcome]:
        figures = {group.slug: dict.fromkeys(_ones(group.measure), value) for group in groups}
        return [
            Outcome(
                group,
                {case.contender.name: 1 for case in group.cases},
                [Record(case, [dict(figures[group.slug])]) for case in group.cases],
            )
            for group in groups
        ]

    folder, readme = tmp_path / "benchmarks", tmp_path / "README.md"
    for path in (Path(f"{folder}.md"), readme):
        path.write_text(f"before\n{page.BEGIN}{page.END}after\n")
    publish.publish(Report(machine, FULL, contenders, outcomes(chosen, 1.0)), str(folder), str(readme))
    (folder / "old.svg").touch()

    earlier = publish.published(str(folder), measures, contenders)
    latest = outcomes([group for group in chosen if group.measure.name == "contended"], 3.0)
    merged = publish.merged(earlier, latest, order)
    publish.publish(Report({**machine, "date": "2026-02-02"}, FULL, contenders, merged), str(folder), str(readme))

    tables = {table["measure"]: table for table in json.loads((folder / "results.json").read_text())["tables"]}
    assert tables["uncontended"]["rows"][0]["rounds"][0]["pair"] == 1.0
    assert tables["contended"]["rows"][0]["rounds"][0]["gap"] == 3.0
    assert "2026-01-01" in tables["uncontended"]["run"]
    assert (folder / "results.md").read_text().count("of another run: 2026-01-01") == 1
    assert {path.name for path in folder.glob("*.svg")} == {
        "uncontended-redis-pairs.svg",
        "contended-etcd-8-hold-2ms.svg",
        "summary.svg",
    }
    assert "(docs/benchmarks/summary.svg)" in readme.read_text()
    assert readme.read_text().endswith(f"{page.END}after\n")


# ── the time of a run ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("slowness", [0.5, 1.0, 1.3])
def test_a_run_ends_in_its_time_with_fewer_rounds(slowness: float) -> None:
    plan = make_plan(all_measures(), all_contenders(), FULL)
    plan = [replace(group, cases=tuple(case for case in group.cases if case.problem is None)) for group in plan]
    clock = 0.0
    once = sum(estimate(case) for group in plan for case in group.cases)
    budget = 1.5 * once
    schedule = Schedule(plan, budget, lambda: clock)
    finished = []
    for group in plan:
        schedule.begin_group()
        rounds = 0
        while rounds < group.rounds and schedule.has_time_for_round(rounds):
            for case in group.cases:
                clock += slowness * estimate(case)
                schedule.ran(case)
            rounds += 1
        finished.append(rounds)

    assert min(finished) == 1, "every table has a round"
    assert clock <= max(budget, slowness * once) * 1.02
    assert schedule.left == pytest.approx(0, abs=1e-6)
    if slowness == 0.5:
        assert sum(finished) > len(plan) * 1.5, "the time is used"


def test_without_a_limit_every_round_is_run_and_the_time_left_shrinks() -> None:
    plan = make_plan(all_measures(), all_contenders(), FULL, ["uncontended/threads"])
    clock = 0.0
    schedule = Schedule(plan, None, lambda: clock)
    before = schedule.left
    schedule.begin_group()
    clock = 1.0
    schedule.ran(plan[0].cases[0])

    assert schedule.has_time_for_round(4)
    assert before == pytest.approx(schedule.estimated)
    assert 0 < schedule.left < before


# ── the plan ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_patterns_match_whole_parts_from_their_beginning() -> None:
    def chosen(pattern: str) -> set[str]:
        plan = make_plan(all_measures(), all_contenders(), QUICK, [pattern])
        return {case.name for group in plan for case in group.cases}

    assert {name.split("/")[0] for name in chosen("contended")} == {"contended"}
    assert {name.split("/")[-1] for name in chosen("*-sqlite-a")} == {"holdfast-sqlite-asyncio"}
    assert chosen("uncontended/machine/pairs/flock") == {"uncontended/machine/pairs/flock-2"}
    assert not chosen("nobody")


def test_a_family_is_omitted_with_a_message_when_its_server_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    status = main(["--list"])

    listed = capsys.readouterr()
    assert status == 0
    lines = listed.err.splitlines()
    assert len(lines) == len(set(lines))
    assert {
        "benchmarks: no memcached on this machine: cases on memcached are omitted",
        "benchmarks: no redis-server on this machine: cases on Redis are omitted",
        "benchmarks: no java on this machine: cases on ZooKeeper are omitted",
    } <= set(lines)
    assert "/redis/" not in listed.out
    assert "/memcached/" not in listed.out
    assert "/machine/" in listed.out


def test_every_arena_of_a_measure_with_ratios_has_exactly_one_baseline() -> None:
    for group in make_plan(all_measures(), all_contenders(), QUICK):
        named = [case for case in group.cases if group.measure.name in case.contender.baseline_of]
        assert len(named) == (group.measure.ratio_of is not None), group.slug


# ── servers ──────────────────────────────────────────────────────────────────────────────────────────────────────────

# A session with a server: it sends a request, and another one each time that it is resumed.
Session = Callable[[str], Iterator[None]]


def _to_redis(url: str) -> Iterator[None]:
    with _connect(url) as client:
        while True:
            # Three commands: those of a script are counted too.
            client.sendall(b"EVAL \"redis.call('SET', 'a', 1) return redis.call('GET', 'a')\" 0\r\n")
            assert client.recv(64) == b"$1\r\n1\r\n"
            yield


def _to_memcached(url: str) -> Iterator[None]:
    with _connect(url) as client:
        while True:
            for request in (b"ms a 1 ME T9\r\nx\r\n", b"mg a v\r\n", b"md a\r\n", b"md a\r\n", b"get b\r\n"):
                client.sendall(request)
                assert client.recv(64)
            yield


def _to_mariadb(url: str) -> Iterator[None]:
    port = urlsplit(url).port or 0
    with contextlib.closing(pymysql.connect(host="127.0.0.1", port=port, user="root", autocommit=True)) as client:
        while True:
            with client.cursor() as cursor:
                cursor.execute("SELECT 1")
            yield


def _to_etcd(url: str) -> Iterator[None]:
    with contextlib.closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)) as client:
        while True:
            client.request("POST", "/v3/kv/range", json.dumps({"key": "YQ=="}))
            assert client.getresponse().read()
            yield


def _to_zookeeper(url: str) -> Iterator[None]:
    with kazoo(urlsplit(url).netloc, timeout=60.0) as client:  # so long that no ping is needed
        while True:
            client.exists("/")
            yield


@pytest.mark.parametrize(
    ("server", "session", "cost"),
    [
        (Redis(), _to_redis, 3),
        (Memcached(), _to_memcached, 5),
        (Mariadb(), _to_mariadb, 1),
        (Etcd(), _to_etcd, 1),
        (Zookeeper(), _to_zookeeper, 1),
    ],
    ids=["redis", "memcached", "mariadb", "etcd", "zookeeper"],
)
def test_a_server_runs_on_its_cores_during_the_block_and_counts_requests_exactly(
    server: Server, session: Session, cost: int, tmp_path: Path
) -> None:
    if server.version() is None:
        pytest.skip(f"no {server.name} on this machine")
    with server.run(str(tmp_path), CORES[-1:]) as url:
        stats = server.stats(url)
        assert stats is not None
        pid = stats.pid()
        cores = os.sched_getaffinity(pid)
        requests = session(url)
        next(requests)
        before = stats.commands()
        for _ in range(3):
            next(requests)
        counted = [stats.commands() - before, stats.commands() - before]
        requests.close()  # type: ignore[attr-defined]  # it is a generator
        stats.close()

    assert counted == [3 * cost, 3 * cost]
    assert cores == {CORES[-1]}
    assert not Path("/proc", str(pid)).exists()
    with pytest.raises(ConnectionRefusedError):
        _connect(url)


@needs_redis
def test_nodes_are_separate_servers_that_end_together(tmp_path: Path) -> None:
    with RedisNodes(3).run(str(tmp_path), CORES) as url:
        nodes = [f"redis://{node}" for node in urlsplit(url).netloc.split(",")]
        accounts = [Redis().stats(node) for node in nodes]
        pids = {account.pid() for account in accounts}
        for account in accounts:
            account.close()

    assert len(pids) == 3
    for node in nodes:
        with pytest.raises(ConnectionRefusedError):
            _connect(node)


@needs_redis
def test_delayed_data_arrives_late_and_complete_and_requests_do_not_queue(tmp_path: Path) -> None:
    seconds, text = 0.2, b"x" * 100_000
    with (
        Redis().run(str(tmp_path), CORES) as near,
        delayed(near, seconds, str(tmp_path), CORES) as url,
        contextlib.ExitStack() as opened,
    ):
        clients = [opened.enter_context(_connect(url)) for _ in range(16)]

        def echo(clients: Sequence[socket.socket]) -> float:
            """The seconds that these requests take at the same time."""
            began = time.monotonic()
            for client in clients:
                client.sendall(b"*2\r\n$4\r\nECHO\r\n$%d\r\n%s\r\n" % (len(text), text))
            for client in clients:
                with client.makefile("rb") as stream:
                    assert stream.read(len(text) + 11) == b"$%d\r\n%s\r\n" % (len(text), text)
            return time.monotonic() - began

        alone, together = echo(clients[:1]), echo(clients)

    assert alone >= seconds, "never early"
    assert together < 8 * alone, "in sequence they would have taken sixteen times as long"
    with pytest.raises(ConnectionRefusedError):
        _connect(url)


@needs_redis
def test_a_delayed_connection_closes_both_ends_when_one_closes(tmp_path: Path) -> None:
    with (
        Redis().run(str(tmp_path), CORES) as near,
        delayed(near, 0.001, str(tmp_path), CORES) as url,
        _connect(url) as client,
        _connect(url) as other,
    ):
        client.sendall(b"QUIT\r\n")
        answered = client.recv(64) + client.recv(64)
        other.sendall(b"PING\r\n")

        assert answered == b"+OK\r\n"
        assert other.recv(64) == b"+PONG\r\n"


def test_a_delay_proxy_that_fails_to_start_reports_why(tmp_path: Path) -> None:
    no_such_core = [9999]

    with (
        pytest.raises(ServerFailed, match="the delay did not start: taskset"),
        delayed("redis://127.0.0.1:6379", 0.001, str(tmp_path), no_such_core),
    ):
        pass


@needs_redis
def test_a_server_ends_when_its_runner_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, time; from benchmarks.servers import Redis\n"
        f"with Redis().run(sys.argv[1], {CORES}) as url: print(url, flush=True); time.sleep(60)"
    )
    runs = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], cwd=runner.ROOT, stdout=subprocess.PIPE, text=True
    )
    assert runs.stdout is not None
    url = runs.stdout.readline().strip()
    _connect(url).close()

    runs.kill()
    runs.wait()
    runs.stdout.close()

    def refuses() -> bool:
        try:
            _connect(url).close()
        except ConnectionRefusedError:
            return True
        except ConnectionResetError:  # the server was ending
            return False
        return False

    eventually(refuses)


@needs_redis
def test_a_server_that_fails_to_start_fails_only_its_case(tmp_path: Path) -> None:
    class Misled(Redis):
        program = "false"

    with pytest.raises(ServerFailed, match="false did not start"), Misled().run(str(tmp_path), CORES):
        pass
    plan = make_plan(all_measures(), all_contenders(), TINY, ["uncontended/redis/pairs/two-connection-calls"])
    case = plan[0].cases[0]
    group = replace(plan[0], cases=(replace(case, contender=replace(case.contender, server=Misled())),))

    (outcome,) = runner.run([group], cores=CORES, folder=str(tmp_path))

    assert "false did not start" in (outcome.records[0].problem or "")


# ── runs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize(
    ("measure", "patterns"),
    [
        *(pytest.param(measure, FEW[measure.name], id=measure.name) for measure in all_measures()),
        *(  # each store: its server, and the requests that are counted there
            pytest.param(measure, (f"{measure.name}/*/*/holdfast",), id=f"{measure.name}-all", marks=pytest.mark.extra)
            for measure in all_measures()
        ),
    ],
)
def test_a_tiny_run_of_our_contenders(measure: Measure, patterns: tuple[str, ...], tmp_path: Path) -> None:
    plan = _thinned(make_plan([measure], _contenders_here(), TINY, patterns))

    outcomes = runner.run(plan, cores=CORES, folder=str(tmp_path))

    assert {outcome.group.measure.name for outcome in outcomes} == {measure.name}
    for outcome in outcomes:
        for record in outcome.records:
            if outcome.group.measure.cannot(record.case.contender, outcome.group.setting):
                continue
            assert record.problem is None, (record.case.name, record.problem)
            assert len(record.good) == outcome.group.rounds
            assert not record.is_broken
    assert not list(tmp_path.iterdir())
    report = Report({"CPU": "known"}, TINY, all_contenders(), outcomes)
    assert max(map(len, report.to_text().splitlines())) <= WIDTH
    for svg in report.to_plots().values():
        assert ET.fromstring(svg) is not None  # noqa: S314  our own
    report.write(str(tmp_path / "out"))
    assert json.loads((tmp_path / "out" / "results.json").read_text())["machine"] == {"CPU": "known"}


@pytest.mark.parametrize("contender", [each for each in all_contenders() if each.ours], ids=lambda each: each.slug)
def test_a_contender_acquires_and_releases(contender: Contender, tmp_path: Path) -> None:
    """In this process, on a server of the test run: the requests of a case, without its processes and figures."""
    if contender.version is None:
        pytest.skip(f"{contender.name}: not installed")
    location, lock = _location(contender, tmp_path), f"bench-{uuid.uuid4().hex}"
    contender.load()

    async def with_tasks(tasks: Callable[[str], AsyncLocks]) -> None:
        locks = tasks(location)
        for _ in range(2):
            async with locks.lock(lock):
                pass
        await locks.close()

    if contender.tasks is not None:
        asyncio.run(with_tasks(contender.tasks))
    if contender.threads is not None:
        locks = contender.threads(location)
        for _ in range(2):
            with locks.lock(lock):
                pass
        locks.close()


@needs_redis
def test_commands_of_a_server_are_in_the_results(tmp_path: Path) -> None:
    pytest.importorskip("redis")
    plan = make_plan(all_measures(), _contenders_here(), TINY, ["waiters/redis/3/redis-py"])

    (outcome,) = runner.run(plan, cores=CORES, folder=str(tmp_path))

    assert [record.problem for record in outcome.records] == [None, None]
    for record in outcome.records:
        assert record.good[0]["commands"] >= 4  # a SET that acquires it; a script that compares and deletes
        assert "idle_commands" in record.good[0]
    drawn = Report({}, TINY, [], [outcome]).to_plots()
    assert set(drawn) == {"waiters-redis.svg", "waiters-redis-commands.svg", "waiters-redis-idle-commands.svg"}
    assert not list(tmp_path.iterdir())


def test_rounds_are_interleaved(tmp_path: Path) -> None:
    plan = make_plan(all_measures(), all_contenders(), TINY._replace(rounds=2), ["uncontended/threads"])
    order: list[str] = []

    runner.run(plan, cores=CORES, folder=str(tmp_path), before=lambda case, *_: order.append(case.contender.name))

    assert order == ["holdfast memory", "threading.Lock"] * 2


def test_the_command_line_lists_runs_and_shows_missing_peers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--quick", "--rounds", "1", "--only", "uncontended/threads", "--only", "uncontended/machine/pairs/fast*"]

    assert main([*options, "--list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert main([*options, "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr()

    assert len(listed) == 3
    assert "threading.Lock" in shown.out
    assert ("not installed" in listed[-1]) == ("fasteners  not installed" in shown.out)  # the dev venv has no peers
    assert {path.name for path in tmp_path.iterdir()} >= {"results.md", "results.json", "results.txt"}


@needs_redis
def test_another_version_is_measured_in_the_same_rounds_from_its_own_sources(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = tmp_path / "old" / "src" / "holdfast"
    old.mkdir(parents=True)
    (old / "__init__.py").write_text("raise ImportError('these are the sources of the other version')")
    only = [
        "--only",
        "uncontended/redis/pairs/holdfast-redis",
        "--only",
        "uncontended/redis/pairs/two-connection-calls",
    ]

    main(["--quick", "--rounds", "1", *only, "--before", str(tmp_path / "old"), "--out", str(tmp_path / "out")])

    rows = {
        row["contender"]: row
        for row in json.loads((tmp_path / "out" / "results.json").read_text())["tables"][0]["rows"]
    }
    assert "these are the sources of the other version" in rows["holdfast redis, before"]["problem"]
    assert rows["holdfast redis"]["problem"] is None
    assert rows["holdfast redis"]["rounds"][0]["frames"] > 10
    assert "Python" in capsys.readouterr().out


@pytest.mark.parametrize("options", ["--only nobody", "--publish --quick", "--cores x", "--rounds 0"])
def test_invalid_arguments_are_refused(options: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(options.split())
    except SystemExit as end:
        status = int(str(end.code))

    assert status == 2
    assert capsys.readouterr().err


def test_a_contender_that_fails_is_shown_and_does_not_stop_the_others(tmp_path: Path) -> None:
    (measure,) = [measure for measure in all_measures() if measure.name == "uncontended"]
    plan = make_plan([measure], all_contenders(), TINY, ["uncontended/threads"])
    unknown = replace(plan[0].cases[0].contender, name="nobody knows it")
    broken = replace(plan[0], cases=(Case(measure, plan[0].setting, unknown), *plan[0].cases))

    (outcome,) = runner.run([broken], cores=CORES, folder=str(tmp_path))

    assert [record.problem is None for record in outcome.records] == [False, True, True]
    assert "failed: " in outcome_table(outcome).to_text()


def test_a_contender_that_takes_too_long_is_ended_with_its_processes(tmp_path: Path) -> None:
    (measure,) = [measure for measure in all_measures() if measure.name == "waiters"]
    slow = replace(measure, limit=0.5)
    plan = make_plan([slow], all_contenders(), TINY._replace(settle_seconds=30), ["waiters/machine/3/flock"])

    (outcome,) = runner.run(plan, cores=CORES, folder=str(tmp_path))

    assert outcome.records[0].problem == "no result after 0.5 s"
    assert not list(tmp_path.iterdir())
    assert not _processes_with(str(tmp_path))


def test_an_interrupt_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "--only", "contended/machine/8-hold-2ms/flock"]
    run = subprocess.Popen(
        [*command, "--folder", str(tmp_path), "--out", str(tmp_path / "out")],
        cwd=runner.ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not _processes_with(str(tmp_path) + "/holdfast-bench-"):
        assert run.poll() is None
        time.sleep(0.01)

    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=30)

    assert run.returncode == 130
    assert "interrupted" in errors
    eventually(lambda: not _processes_with(str(tmp_path)))  # killed processes may take a moment to end
    assert not list(tmp_path.iterdir())


def _thinned(plan: list[Group]) -> list[Group]:
    """Fewer cases, because the start of a server takes time.

    Of `uncontended`, all cases in the first setting of each arena, and the first one in the others. Of `contended`
    without a hold, the first case. Of `imports`, and of other measures on files and Redis, the first case of each
    runtime.
    """
    thinned: list[Group] = []
    arenas = {group.arena for group in plan}
    arenas = arenas & {Arena.MACHINE, Arena.REDIS} or arenas
    for group in plan:
        name = group.measure.name
        cases = {case.contender.tasks is None: case for case in reversed(group.cases)}
        if name == "uncontended":
            is_first = not any(other.measure.name == name and other.arena is group.arena for other in thinned)
            thinned.append(group if is_first else replace(group, cases=group.cases[:1]))
        elif name == "contended" and not group.setting.numbers["hold"]:
            thinned.append(replace(group, cases=group.cases[:1]))
        elif name == "imports" or group.arena in arenas:
            thinned.append(replace(group, cases=tuple(reversed(cases.values()))))
    return thinned


def _contenders_here() -> list[Contender]:
    """Return the contenders whose driver and server are on this machine."""
    return [contender for contender in all_contenders() if contender.version is not None and _has_server(contender)]


def _location(contender: Contender, folder: Path) -> str:
    """Return the URL of a server of the test run, without options, as a case has it; without a server, the folder."""
    urls: dict[type[Server], Callable[[], str]] = {
        Redis: lambda: redis.server().url,
        RedisNodes: lambda: redis.fresh_redlock_url().partition("?")[0],
        Postgresql: _postgresql,
        Memcached: lambda: memcached.fresh_url().partition("?")[0],
        Zookeeper: lambda: zookeeper.server().url,
        Etcd: lambda: etcd.server().url,
        Mariadb: lambda: mysql.server().url_of(mysql.fresh_database()),
        Nats: lambda: nats.server().url,
    }
    return str(folder) if contender.server is None else urls[type(contender.server)]()


@functools.cache
def _postgresql() -> str:
    """A database of its own: without options, the tables are in the default schema."""
    database = f"bench_{uuid.uuid4().hex}"
    postgresql.server().rows(f"CREATE DATABASE {database}".encode())
    return f"postgresql://postgres@{postgresql.server().address}/{database}"


def _has_server(contender: Contender) -> bool:
    return contender.server is None or contender.server.version() is not None


def _connect(url: str) -> socket.socket:
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname, parts.port), timeout=5.0)


def _ones(measure: Measure) -> dict[str, float]:
    """Return a round in which every figure is 1."""
    more = ["gap_to_another", "wait_p99_of_share", "wait_max_of_share"]
    return dict.fromkeys([*(column.key for column in measure.columns), *more], 1.0)


def _processes_with(words: str) -> list[str]:
    """Return the command lines of other processes that contain these words."""
    commands = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            command = Path("/proc", pid, "cmdline").read_text()
        except OSError:  # it has ended
            continue
        if words in command and int(pid) != os.getpid():
            commands.append(command)
    return commands


def _measure(name: str) -> Measure:
    return next(measure for measure in all_measures() if measure.name == name)


def _contender(name: str) -> Contender:
    return next(contender for contender in all_contenders() if contender.name == name)


def _record(name: str, pairs: list[float]) -> Record:
    measure = _measure("uncontended")
    case = Case(measure, measure.settings(QUICK)[0], _contender(name))
    return Record(case, [{"pair": pair, "single_p99": pair} for pair in pairs])


def _outcome(*records: Record) -> Outcome:
    case = records[0].case
    group = Group(case.measure, case.contender.arena, case.setting, tuple(record.case for record in records), rounds=1)
    return Outcome(group, {record.case.contender.name: 1 for record in records}, list(records))


# ── capacity ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@needs_redis
def test_the_capacity_of_a_store_is_measured_by_the_processor_time_of_its_server() -> None:
    store = capacity_stores.STORES["redis"]

    measured = capacity.run(store, capacity.pairs, capacity.Options(seconds=0.5, leases=0, waiters=0, fleet=0))

    assert measured["pair_cpu"] > 0
    assert measured["pair_rate"] > 0
    assert measured["pair_connections"] >= 1  # more if a busy machine has let one time out


@needs_redis
def test_waiters_are_measured_by_steps_and_the_last_step_is_reported() -> None:
    store = capacity_stores.STORES["redis"]

    measured = capacity.run(store, capacity.waiters, capacity.Options(seconds=1.0, leases=0, waiters=20, fleet=0))

    assert (measured["waiters"], measured["waiters_asked"]) == (20, 20)
    assert measured["crowd_rate"] > 0


def test_the_pages_have_the_tables_of_the_published_figures() -> None:
    data = capacity_pages.load()
    blocks = {"capacity": capacity_pages.capacity_block(data), "fleet": capacity_pages.fleet_block(data)}

    for name in ("capacity.md", "scaling.md"):
        text = (capacity_pages.DOCS / name).read_text()
        assert len(capacity_pages.MARKED.findall(text)) == 1
        assert capacity_pages.with_blocks(text, blocks) == text, "python -m benchmarks.capacity_pages"


def test_a_table_distinguishes_reached_partly_reached_and_missing_figures() -> None:
    run = {"date": "2026-01-01"}
    some = {"waiters": 3000, "waiters_asked": 10_000, "waiters_share": 0.3, "crowd_cpu": 0.0025}
    data: capacity_pages.Data = {
        "etcd": {"version": "etcd 9", "run": run, "measures": {"waiters": some, "pairs": {"pair_cpu": 0.00005}}},
        "mysql": {"version": "MariaDB 9", "run": run, "measures": {"waiters": {"waiters": 0, "waiters_asked": 10_000}}},
    }

    lines = capacity_pages.capacity_block(data).splitlines()

    assert "| etcd 9 | 50 µs | 20,000 | – | – | – | – |" in lines
    assert "| etcd 9 | 3,000 of 10,000 | 30.0% | 100 µs | 2.5 ms | – |" in lines
    assert "| MariaDB 9 | fewer than 1,000 | – | – | – | – |" in lines
    assert lines[-2] == "- MariaDB, etcd: date: 2026-01-01"
