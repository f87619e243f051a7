"""Hazard: a revoke request does not reach the command, ends a command that is not revocable, or releases the lock
before the command has ended.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from holdfast.threads.client import Client
from tests.integration.cli.run.conftest import STAMPER, Runs, Stamps, is_running
from tests.support.processes import PATIENCE, eventually

# Both record the signal. POLITE ends a moment later with its own status, STUBBORN does not end.
POLITE = "import signal, sys, time; signal.signal(15, lambda *_: (open(sys.argv[1], 'w').close(), sys.exit(5)))"
STUBBORN = "import signal, sys, time; signal.signal(15, lambda *_: open(sys.argv[1], 'w').close())"
WAIT = "; open(sys.argv[1] + '.ready', 'w').close()\nwhile True: time.sleep(60)"


def test_revoke_ends_a_revocable_command_with_status_122(runs: Runs, client: Client, tmp_path: Path) -> None:
    noted, ready = tmp_path / "noted", tmp_path / "noted.ready"
    process = runs.start("a", "--revocable", "--ttl", "3", "--", sys.executable, "-c", POLITE + WAIT, str(noted))
    eventually(ready.exists)
    (holder,) = client.inspect("a").holders
    assert holder.revocable

    assert client.request_revoke("a")

    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 122
    assert noted.exists(), "the command received SIGTERM"
    assert "lock 'a' was revoked" in errors
    assert client.inspect("a").holders == ()


def test_the_lock_is_released_only_after_a_revoked_command_was_killed(
    runs: Runs, client: Client, stamps: Stamps, tmp_path: Path
) -> None:
    noted, ready = tmp_path / "noted", tmp_path / "noted.ready"
    arguments = ("--revocable", "--ttl", "6", "--grace", "1", "--", sys.executable, "-c", STUBBORN + WAIT, str(noted))
    process = runs.start("a", *arguments)
    eventually(ready.exists)
    waiter = runs.start("a", "--", *STAMPER, str(stamps.path))
    eventually(lambda: bool(client.inspect("a").waiters))

    client.request_revoke("a")
    assert process.stderr is not None
    assert "lock 'a' was revoked" in process.stderr.readline()
    eventually(noted.exists, within=3)  # before its lease would have expired
    assert process.poll() is None
    assert stamps.read() == [], "the lock is kept while the command runs"

    process.communicate(timeout=PATIENCE)
    assert process.returncode == 122
    stamps.wait_for(processes=1)
    waiter.send_signal(signal.SIGTERM)
    waiter.communicate(timeout=PATIENCE)


def test_a_command_that_is_not_revocable_keeps_running(runs: Runs, client: Client, stamps: Stamps) -> None:
    runs.start("a", "--ttl", "1", "--", *STAMPER, str(stamps.path))
    stamps.wait_for(processes=1)
    assert not client.inspect("a").holders[0].revocable

    assert client.request_revoke("a")
    requested_at = stamps.last()
    eventually(lambda: stamps.last() > requested_at + 1.5)  # past two of its renewals

    assert all(map(is_running, stamps.pids()))


def test_a_command_revoked_before_its_start_does_not_start(tmp_path: Path) -> None:
    code = f"""
from holdfast.cli.run.guard import Guard
from holdfast.runtimes import system
guard = Guard(["touch", {str(tmp_path / "begun")!r}])
guard.send("end")
guard.start({{}}, deadline=system.now() + 60, grace=1, takes_terminal=False, liveness_fds=())
print(guard.receive()["event"])
guard.close()
"""

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE)

    assert (done.stdout, done.stderr) == ("late\n", "")
    assert not (tmp_path / "begun").exists()


def test_a_revoke_request_does_not_affect_the_next_lease(runs: Runs, client: Client, stamps: Stamps) -> None:
    with client.lock("a") as lease:
        client.request_revoke("a", lease.fence)

    assert runs.run("a", "--revocable", "--ttl", "0.6", "--", "sleep", "1")[0] == 0
