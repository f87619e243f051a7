"""A forked worker process differs from one that was started: in its parent, descriptors, environment or end."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from holdfast_lab.conformance.forked import ForkedProcess

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux has pidfds")


def started(folder: Path, program: str, *arguments: str, pass_fds: tuple[int, ...] = ()) -> tuple[ForkedProcess, int]:
    """A process with this program, and the file of its stdout and stderr."""
    script = folder / "script.py"
    script.write_text(program)
    output = os.open(folder / "output", os.O_RDWR | os.O_CREAT)
    with open(os.devnull) as nothing:
        process = ForkedProcess(str(script), arguments, (nothing.fileno(), output, output), pass_fds)
    return process, output


def text_of(output: int) -> str:
    try:
        return os.pread(output, 1 << 16, 0).decode()
    finally:
        os.close(output)


def test_it_is_a_child_of_this_process_with_its_arguments_folder_and_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORKED", "yes")
    monkeypatch.chdir(tmp_path)
    program = "import os, sys; print(__name__, os.getppid(), *sys.argv[1:], os.environ['FORKED'], os.getcwd())"

    process, output = started(tmp_path, program, "a", "b")

    assert process.wait(30) == 0
    assert text_of(output).split() == ["__main__", str(os.getpid()), "a", "b", "yes", str(tmp_path)]


def test_it_has_the_passed_descriptors_and_no_others(tmp_path: Path) -> None:
    program = "import os, sys; print(os.pread(int(sys.argv[1]), 9, 0), sorted(map(int, os.listdir('/proc/self/fd'))))"
    with tempfile.TemporaryFile() as file:
        file.write(b"data")
        file.flush()

        process, output = started(tmp_path, program, str(file.fileno()), pass_fds=(file.fileno(),))

        assert process.wait(30) == 0
        data, _, listed = text_of(output).partition(" ")
        assert data == "b'data'"
        of_listdir = 1
        assert len(listed.split(",")) == len([0, 1, 2, file.fileno()]) + of_listdir


@pytest.mark.parametrize(
    ("program", "status", "printed"),
    [
        ("import sys; sys.exit(7)", 7, ""),
        ("import atexit; atexit.register(print, 'at the end')", 0, "at the end"),
        ("raise ValueError('wrong')", 1, "ValueError: wrong"),
        ("raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt"),
    ],
)
def test_it_ends_as_any_program_does(tmp_path: Path, program: str, status: int, printed: str) -> None:
    process, output = started(tmp_path, program)

    assert process.wait(30) == status
    assert printed in text_of(output)


def test_it_can_be_killed_and_awaited_for_a_limited_time(tmp_path: Path) -> None:
    process, output = started(tmp_path, "import time; time.sleep(600)")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)

    process.kill()

    assert process.wait(30) == -signal.SIGKILL
    os.close(output)
