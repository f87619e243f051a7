"""Hazard: `holdfast top` shows stale or wrong locks, interprets names as markup, breaks a lease by accident, or ends
at an outage.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest

from tests.integration.cli.conftest import CliStore, StartOnTerminal
from tests.integration.cli.test_hostile import BAD, EVIL, hold_hostile_lock
from tests.integration.cli.test_watch import make_unavailable
from tests.support.processes import Worker, WorkerPool
from tests.support.top import Screen, run_top

RED = "#f4005f"  # the red of Textual's theme


def masked(screen: Screen) -> str:
    """Replace what differs between runs: pids, fences, durations, the time of day, the bar, the path of the store."""
    text = screen.text
    for pattern, mark in (
        (r"\d\d:\d\d:\d\d", "HH:MM:SS"),
        (r"\d{13,}", "FFFFFFFFFFFFFFFF"),
        (r"(?<=web-\d/)\d+ *", lambda match: "PID".ljust(len(match[0]))),
        (r"sqlite://\S+", lambda match: "URL".ljust(len(match[0]))),
        (r"[█▉▊▋▌▍▎▏]+ *\d+s", "BAR    29s"),
        (r"\d\.\ds", "0.1s"),
        (r"\d\.\d\d s", "0.01 s"),
    ):
        text = re.sub(pattern, mark, text)
    return "\n".join(line.rstrip() for line in text.splitlines())


@pytest.fixture
def web(pool: WorkerPool, store: CliStore) -> list[Worker]:
    """Processes on three hosts, whose names have the same length in every run."""
    workers = [pool.start(store.url) for _ in range(3)]
    for number, worker in enumerate(workers, start=1):
        worker.call("impersonate", host=f"web-{number}", program="billing.py", thread="main")
    return workers


# ── the table ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_table_shows_locks_of_each_kind_in_80_columns(store: CliStore, web: list[Worker]) -> None:
    web[0].call("hold", lock="nightly-report", meta={"day": 7})
    web[1].call("wait", lock="nightly-report")
    web[2].call("wait", lock="nightly-report")
    store.await_waiters("nightly-report", 2)
    web[0].call("hold", lock="pool", limit=3)
    web[1].call("hold", lock="pool", limit=3)
    web[2].call("hold", lock="catalogue", shared=True)

    async def steps(screen: Screen) -> None:
        await screen.shows("nightly-report", "sorted by")
        lines = masked(screen).splitlines()
        words = [" ".join(line.split()) for line in lines]

        assert words[:4] == [
            "holdfast top URL 3 locks, 2 waiters HH:MM:SS",
            "sorted by longest wait ▼ read in 0.01 s",
            "lock kind holder held ttl left waiters wait▼",
            "nightly-report lock web-1/PID 0.1s BAR 29s 2 0.1s",
        ]
        assert sorted(words[4:6]) == [
            "catalogue read-write web-3/PID 0.1s BAR 29s 0",
            "pool semaphore 3 web-1/PID +1 0.1s BAR 29s 0",
        ]
        assert words[-3] == "nightly-report (lock)"
        assert re.fullmatch(r"fence FFFFFFFFFFFFFFFF web-1/PID billing.py main for \S+ s", words[-2])
        assert words[-1] == "⏎ Lock / Filter s Sort Space Pause g Graph r Revoke b Break ? Help q Quit"
        assert len(lines) == 24
        assert all(len(line) <= 80 for line in lines)

    run_top(store.url, steps)


def test_a_wide_terminal_shows_program_and_fence(store: CliStore, web: list[Worker]) -> None:
    fence = web[0].call("hold", lock="nightly-report")["fence"]

    async def steps(screen: Screen) -> None:
        await screen.shows("program", "fence", "billing.py", str(fence))

    run_top(store.url, steps, size=(140, 30))


# By default a terminal that is too small, and a large one.
@pytest.mark.parametrize("size", [(20, 5), pytest.param((40, 10), marks=pytest.mark.extra), (200, 60)])
def test_every_page_is_drawn_on_any_size(store: CliStore, web: list[Worker], size: tuple[int, int]) -> None:
    web[0].call("hold_many", locks=[f"{number:03} {'錠' * 100} x" for number in range(100)])

    async def steps(screen: Screen) -> None:
        for keys in (["end"], ["enter"], ["escape"], ["g"], ["escape"], ["question_mark"], ["escape"]):
            await screen.press(*keys)
            assert len(screen.lines) == size[1]
            assert all(strip.cell_length <= size[0] for strip in screen.app.screen._compositor.render_strips())

    run_top(store.url, steps, size=size)


def test_changes_of_the_store_appear(store: CliStore, web: list[Worker]) -> None:
    async def steps(screen: Screen) -> None:
        await screen.shows("no lock is in use")
        web[0].call("hold", lock="a")
        await screen.shows("web-1/", "1 lock, 0 waiters")
        web[1].call("wait", lock="a")
        await screen.shows("1 lock, 1 waiter ")
        web[0].call("release", lock="a")
        await screen.shows("web-2/", "0 waiters")
        web[1].call("release", lock="a")
        await screen.shows("no lock is in use")

    run_top(store.url, steps)


def test_the_filter_matches_names_hosts_and_programs(store: CliStore, web: list[Worker]) -> None:
    web[0].call("hold", lock="invoice")
    web[1].call("hold", lock="report")

    async def steps(screen: Screen) -> None:
        await screen.press("slash")
        await screen.type("INV")
        await screen.shows("1 hidden")
        assert names(screen) == ["invoice"]
        await screen.press("enter")
        assert names(screen) == ["invoice"]
        await screen.press("escape")
        assert len(names(screen)) == 2

        await screen.press("slash")
        await screen.type("web-2")
        await screen.shows("1 hidden")
        assert names(screen) == ["report"]
        await screen.type("nothing")
        await screen.shows("no lock matches the filter")

    run_top(store.url, steps)


def test_the_table_is_sorted_by_the_column_with_the_arrow(store: CliStore, web: list[Worker]) -> None:
    web[0].call("hold_many", locks=["b", "a", "c"])

    async def steps(screen: Screen) -> None:
        await screen.press("s")
        assert names(screen) == ["a", "b", "c"]
        await screen.shows("lock▲", "sorted by lock ▲")
        await screen.press("S")
        assert names(screen) == ["c", "b", "a"]
        await screen.shows("lock▼")
        await screen.press("s")
        await screen.shows("kind▲")
        assert "lock▼" not in screen.text

    run_top(store.url, steps)


def test_the_selection_stays_on_its_lock_when_rows_move(store: CliStore, web: list[Worker]) -> None:
    web[0].call("hold_many", locks=["b", "d"])

    async def steps(screen: Screen) -> None:
        await screen.press("s", "down")
        await screen.shows("d (lock)")
        web[1].call("hold_many", locks=["a", "c", "e"])
        await screen.shows("5 locks")
        assert names(screen) == ["a", "b", "c", "d", "e"]
        assert "d (lock)" in screen.text

        web[0].call("release", lock="d")
        await screen.shows("4 locks", "e (lock)")  # the lock that is in its row now

    run_top(store.url, steps)


def test_a_paused_screen_does_not_change(store: CliStore, web: list[Worker]) -> None:
    web[0].call("hold", lock="a")

    async def steps(screen: Screen) -> None:
        await screen.press("space")
        await screen.shows("PAUSED since")
        read_at = screen.app.snapshot.read_at
        web[0].call("release", lock="a")
        await screen.pilot.pause(0.3)
        assert names(screen) == ["a"]
        assert screen.app.snapshot.read_at - read_at < 0.3  # at most a poll that had begun

        await screen.press("space")
        await screen.shows("no lock is in use")
        assert "PAUSED" not in screen.text

    run_top(store.url, steps)


# ── the other pages ──────────────────────────────────────────────────────────────────────────────────────────────


def test_the_page_of_a_lock_shows_its_queue_meta_and_past_holders(store: CliStore, web: list[Worker]) -> None:
    fence = web[0].call("hold", lock="a", meta={"job": "invoices"})["fence"]
    web[1].call("wait", lock="a")
    store.await_waiters("a", 1)
    web[2].call("wait", lock="a")
    store.await_waiters("a", 2)

    async def steps(screen: Screen) -> None:
        await screen.press("enter")
        await screen.shows("a (lock)", '{"job": "invoices"}', f"fence           {fence}")
        positions = [re.sub(r"/\d+", "/PID", line).split()[:2] for line in screen.lines if re.match(r"\d  web", line)]
        assert positions == [["1", "web-2/PID"], ["2", "web-3/PID"]]
        assert re.search(r"ttl left +2\d s +[█▉▊▋▌▍▎▏]+", screen.text)

        web[0].call("release", lock="a")
        await screen.shows("past holders", f"fence {fence}", "holder          web-2/")
        web[1].call("release", lock="a")
        await screen.shows("holder          web-3/")
        web[2].call("release", lock="a")
        await screen.shows("a is free")
        await screen.press("escape")
        await screen.shows("no lock is in use")

    run_top(store.url, steps)


def test_a_deadlock_is_red_in_the_graph(store: CliStore, web: list[Worker]) -> None:
    web[0].call("hold_and_wait", held="a", awaited="b")
    web[1].call("hold_and_wait", held="b", awaited="a")
    web[2].call("wait", lock="a")

    async def steps(screen: Screen) -> None:
        await screen.shows("2 locks, 3 waiters, 1 DEADLOCK")
        await screen.press("g")
        await screen.shows("deadlock 1: 2 callers wait for each other", "waiting")
        assert screen.styles_of("waits for b") == {RED}
        assert screen.styles_of("a ← web-2/") == {RED}
        assert RED not in screen.styles_of("a ← web-3/")

    run_top(store.url, steps)


def test_the_help_names_all_keys(store: CliStore) -> None:
    async def steps(screen: Screen) -> None:
        await screen.press("question_mark")
        await screen.shows("break a lease: type its fence", "Ctrl-C  quit")

    run_top(store.url, steps)


# ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_release_is_requested_only_after_a_confirmation(store: CliStore, web: list[Worker]) -> None:
    fence = web[0].call("hold", lock="a", revocable=True, ttl=1)["fence"]

    async def steps(screen: Screen) -> None:
        for key in ("n", "escape", "enter"):
            await screen.press("r")
            await screen.shows("Request that these holders release a?", f"fence {fence}")
            await screen.press(key)
        await screen.press("escape")
        await screen.pilot.pause(0.5)  # longer than a third of the ttl, in which a request reaches the holder
        assert web[0].call("revoked", lock="a") == {"revoked": []}

        await screen.press("r", "y")
        await screen.shows("a: release requested")
        await screen.until(lambda: web[0].call("revoked", lock="a") == {"revoked": [fence]})

    run_top(store.url, steps)


def test_a_lease_is_broken_only_after_its_fence_was_typed(store: CliStore, web: list[Worker]) -> None:
    fence = web[0].call("hold", lock="a")["fence"]

    async def steps(screen: Screen) -> None:
        await screen.press("b")
        await screen.shows("Break a lease of a", f"fence {fence}")
        for typed in ("", "y", str(fence - 1), f"{fence}0"):
            await screen.type(typed)
            await screen.press("enter")
            await screen.shows("no holder has this fence: nothing was broken")
            await screen.press("ctrl+u")  # deletes the text
        await screen.press("escape")
        await screen.press("b", *str(fence), "escape")
        assert store.fences("a") == [fence]

        await screen.press("b", *str(fence), "enter")
        await screen.shows(f"a: fence {fence}: broken")
        assert store.fences("a") == []

    run_top(store.url, steps)


def test_the_lease_of_a_successor_is_not_broken(store: CliStore, web: list[Worker]) -> None:
    fence = web[0].call("hold", lock="a")["fence"]

    async def steps(screen: Screen) -> None:
        await screen.press("enter", "b")
        await screen.shows("Break a lease of a")
        web[0].call("release", lock="a")
        successor = web[1].call("hold", lock="a")["fence"]
        await screen.press(*str(fence), "enter")
        await screen.shows(f"a: fence {fence}: had already ended")
        assert store.fences("a") == [successor]

    run_top(store.url, steps)


# ── faults and hostile text ──────────────────────────────────────────────────────────────────────────────────────


def test_an_outage_is_shown_and_polling_continues(store: CliStore, web: list[Worker]) -> None:
    fence = web[0].call("hold", lock="a")["fence"]

    async def steps(screen: Screen) -> None:
        await screen.shows("web-1/")
        gone = make_unavailable(store)
        await screen.shows("NOT AVAILABLE, last read", "web-1/")
        await screen.press("b", *str(fence), "enter")  # a request fails too, and is reported
        await screen.until(lambda: screen.app.message is not None and screen.app.message[1] == "bold red")
        await screen.press("enter")
        await screen.shows("a (lock)")

        store.path.rmdir()
        gone.rename(store.path)
        await screen.until(lambda: "NOT AVAILABLE" not in screen.text)

    run_top(store.url, steps)


def test_names_are_shown_as_text_without_control_characters(store: CliStore, web: list[Worker], holder: Worker) -> None:
    markup = "[red]x[/red] [@click=app.quit]y[/] <script>"
    hold_hostile_lock(holder)
    web[0].call("hold", lock=markup, meta={markup: markup})
    web[1].call("wait", lock=EVIL)
    store.await_waiters(EVIL, 1)

    async def steps(screen: Screen) -> None:
        for keys in ([], ["g"], ["escape", "enter"], ["escape", "end", "enter"], ["escape", "r"], ["escape", "b"]):
            await screen.press(*keys)
            assert set(screen.text) & BAD <= {"\n"}
            assert "\u202e" not in screen.text
        await screen.press("escape", "s")  # by name: the markup comes after the quoted name
        await screen.shows("[red]x[/red]", "$'")
        await screen.press("slash")
        await screen.type("<scr")
        await screen.shows("1 hidden")
        await screen.press("enter", "enter")
        await screen.shows(f"{markup} (lock)", f'meta            {{"{markup}"')
        assert RED not in screen.styles_of(markup)

    run_top(store.url, steps)


# ── the command ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_top_refuses_to_run_without_a_terminal(store: CliStore) -> None:
    result = store.run("top")

    assert (result.status, result.out) == (2, "")
    assert result.errors == "holdfast: `holdfast top` needs a terminal: use `holdfast watch` or `holdfast ls`\n"


def test_top_names_the_extra_that_is_missing(store: CliStore) -> None:
    code = "import sys; sys.modules['textual'] = None; from holdfast.cli import main; sys.exit(main(['top']))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=store.environment, capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    assert "pip install 'holdfast[tui]'" in done.stderr


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("q", 0),
        pytest.param("\x03", 0, marks=pytest.mark.extra),  # a key, as q
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.extra),  # is handled as SIGTERM
    ],
)
def test_top_restores_the_terminal(
    store: CliStore, holder: Worker, start_on_terminal: StartOnTerminal, end: str | signal.Signals, status: int
) -> None:
    holder.call("hold", lock="nightly-report")
    terminal = start_on_terminal("top", "--interval", "0.1")
    terminal.read_until("nightly-report")

    if isinstance(end, str):
        terminal.type(end)
    else:
        terminal.process.send_signal(end)

    assert terminal.finish() == status
    assert terminal.output.count("\x1b[?1049h") == terminal.output.count("\x1b[?1049l") == 1  # the alternate screen
    assert terminal.output.rindex("\x1b[?25h") > terminal.output.rindex("\x1b[?25l")  # the cursor is visible
    assert "Traceback" not in terminal.output


def test_top_fails_if_the_store_does_not_exist(store: CliStore, start_on_terminal: StartOnTerminal) -> None:
    terminal = start_on_terminal("top", "--url", f"sqlite://{store.path}.none")

    assert terminal.finish() == 125
    assert "\x1b[?1049h" not in terminal.output


# ── helpers ──────────────────────────────────────────────────────────────────────────────────────────────────────


def names(screen: Screen) -> list[str]:
    """The locks in the table, from the top."""
    lines = screen.app.screen.query_one("#locks")._lines  # type: ignore[attr-defined]  # private to the widget
    return [line[0][0].strip() for line in lines]
