r"""Hazard: untrusted text reaches the terminal as control codes, or a command fails in an unusual environment.

Any client can choose the name of a lock, its host, program, thread and meta. "\x1b]0;…" would set the window's title,
"\x9b" begins a code in one character, "\u202e" reverses the reading direction.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli.text import display_name, escape, shorten, width
from tests.integration.cli.conftest import HOLDFAST, CliStore, StartOnTerminal
from tests.support.processes import PATIENCE, Worker

EVIL = "\x1b[2J\x1b]0;title\x07 \x9b31m\r\n\u202egnp.exe\u2028\x7f\xad"
BAD = set(EVIL) - set("[2J]0;title31mgnp.exe ")


# A user that is not in /etc/passwd, in a user namespace; its files do not change.
BECOME_UNKNOWN = """
import ctypes, os, sys
uid = os.geteuid()
if ctypes.CDLL(None).unshare(0x10000000):
    sys.exit(77)
with open("/proc/self/uid_map", "w") as map:
    map.write(f"54321 {uid} 1")
""".strip()


@pytest.mark.parametrize(
    "arguments", [("ls",), ("ls", "--names"), ("show", EVIL), ("break", EVIL, "--yes"), ("show", EVIL, "--json")]
)
def test_no_command_prints_control_characters_of_untrusted_text(
    store: CliStore, holder: Worker, arguments: tuple[str, ...]
) -> None:
    hold_hostile_lock(holder)

    result = store.run(*arguments)

    assert result.status == 0
    printed = set(result.out + result.errors) - {"\n"}
    assert printed & BAD <= (
        {"\x7f"} if "--json" in arguments else set()
    )  # JSON does not escape DEL, which has no effect


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_watch_prints_no_control_characters_of_untrusted_text(
    holder: Worker, start_on_terminal: StartOnTerminal, term: str
) -> None:
    hold_hostile_lock(holder)
    terminal = start_on_terminal("watch", TERM=term, NO_COLOR="1")
    terminal.read_until("holds")
    terminal.type("\x03")
    terminal.finish()

    assert set(terminal.text.replace("\r\n", "\n").replace("\r", "")) & BAD <= {"\n"}
    assert "$'" in terminal.text  # it was shown


def test_error_messages_are_escaped(store: CliStore) -> None:
    result = store.run("ls", "--url", f"sqlite:///proc/{EVIL}/locks.db")

    assert result.status in (2, 125)
    assert set(result.errors.removesuffix("\n")) & BAD == set()


def test_an_unprintable_name_is_quoted_so_that_bash_reads_it_back(store: CliStore, holder: Worker) -> None:
    names = ["two\nlines", "tab\there", "$'quoted'", " blank ", "it's\x1b\\", "$(touch ran)`touch ran`\n"]
    holder.call("hold_many", locks=names)

    listed = store.run("ls", "--names").out.splitlines()
    pasted = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {' '.join(listed)}"],
        capture_output=True,
        check=True,
        text=True,
        cwd=store.path.parent,
        env={**store.environment, "LC_ALL": "C.UTF-8"},
    ).stdout

    assert sorted(pasted.split("\0")[:-1]) == sorted(names)
    assert not (store.path.parent / "ran").exists()


def test_output_is_ascii_on_a_terminal_without_unicode(holder: Worker, start_on_terminal: StartOnTerminal) -> None:
    holder.call("hold", lock="錠前" * 50)
    terminal = start_on_terminal("ls", PYTHONIOENCODING="ascii", PYTHONUTF8="0")

    assert terminal.finish() == 0
    assert terminal.output.isascii()
    assert all(len(line) <= 80 for line in terminal.text.splitlines())


# ── the environment ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("command", ["ls", "ls --names", "ls --json", "backends", "completion bash"])
def test_no_error_is_printed_when_the_reader_closes_the_pipe(store: CliStore, holder: Worker, command: str) -> None:
    holder.call("hold_many", locks=[f"{number:04}{'x' * 500}" for number in range(200)])  # more than a pipe holds

    shell = f'{" ".join(HOLDFAST)} {command} | head -1; echo "${{PIPESTATUS[0]}}"'
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, env=store.environment, check=True)

    assert done.stdout.splitlines()[-1] in ("141", "0")  # 0: head read everything before it ended
    assert done.stderr == ""


@pytest.mark.parametrize("streams", [">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-"])
def test_the_status_is_unchanged_when_standard_streams_are_closed(
    store: CliStore, holder: Worker, streams: str
) -> None:
    holder.call("hold", lock="a")

    for command, status in (("show a", 0), ("show b", 1), ("ls c", 0), ("run -v b true", 0), ("run -nv a true", 124)):
        shell = f"{' '.join(HOLDFAST)} {command} {streams}"
        closed = subprocess.run(["bash", "-c", shell], env=store.environment, check=False)
        assert (command, closed.returncode) == (command, status)
    assert store.run("ls", "--names").out == "a\n"


def test_every_command_exits_with_125_when_the_store_is_unavailable(store: CliStore) -> None:
    store.path = store.path.with_name("text.db")  # SQLite's log would restore the file of the fixture
    store.environment["HOLDFAST_URL"] = f"sqlite://{store.path}"
    store.path.write_text("this is no lock file, whatever it is called\n" * 100)

    for arguments in (("ls",), ("show", "a"), ("break", "a", "--yes"), ("watch",)):
        result = store.run(*arguments)
        assert (result.status, result.out) == (125, "")
        assert result.errors.startswith("holdfast: ")
        assert result.errors.count("\n") == 1


def test_a_name_that_is_not_utf_8_is_refused(store: CliStore) -> None:
    done = subprocess.run([*HOLDFAST, "show", b"\xff\xfe"], env=store.environment, capture_output=True, check=False)

    assert done.returncode == 2
    assert b"Traceback" not in done.stderr


def test_a_missing_home_folder_is_reported_and_no_file_is_created(tmp_path: Path) -> None:
    code = f"{BECOME_UNKNOWN}\nfrom holdfast.cli import main; sys.exit(main(['ls']))"
    bare = {name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_STATE_HOME", "HOLDFAST_URL")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=bare,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

    if done.returncode == 77:
        pytest.skip("this kernel refuses user namespaces, and the test needs one for a user without a home folder")
    assert done.returncode == 2
    assert "HOLDFAST_URL" in done.stderr
    assert list(tmp_path.iterdir()) == []


# ── widths ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_shortened_text_fits_its_columns() -> None:
    for text in ("a" * 50, "錠" * 50, "e\u0301" * 50, "a錠" * 20, ""):
        for room in range(45):
            assert width(shorten(text, room)) <= room


def test_escape_is_idempotent() -> None:
    assert escape(escape(EVIL)) == escape(EVIL)
    assert escape(EVIL).isprintable()
    assert display_name(EVIL).isprintable()
    assert display_name("order:42 größe") == "order:42 größe"


def hold_hostile_lock(holder: Worker) -> None:
    holder.call("impersonate", host=EVIL, program=EVIL, thread=EVIL)
    holder.call("hold", lock=EVIL, meta={EVIL: EVIL})
