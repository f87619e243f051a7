"""Measure how long the dashboard takes from a change of a lock to the screen.

    .venv/bin/python benchmarks/dashboard_latency.py redis://localhost [PID of the server]

Child processes hold 200 locks with 1,000 waiters in all, and release one after the other. Each change has a new fence.
On Redis, PostgreSQL and MySQL the URL needs `local_handover=no`, because the page shows waiters of the store.
A page in Chromium reports when the fence of a row has changed; the difference to the time of the grant, which the
holder recorded, is the latency. The cost of the dashboard's process is printed too, and with the server's PID that of
the server with and without the page. It needs chromium and playwright.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time

import holdfast

LOCKS, WAITERS, PROCESSES, SECONDS = 200, 1000, 4, 30.0

# Reports (name of the lock, fence, Unix time in ms) of each row that is drawn with a new fence.
OBSERVE = """() => {
    window.changes = [];
    for (const row of document.querySelectorAll('#rows tr')) row.recorded = row.children[2].textContent;
    const record = () => requestAnimationFrame(() => setTimeout(() => {
        const time = Date.now();
        for (const row of document.querySelectorAll('#rows tr')) {
            const fence = row.children[2].textContent;
            if (row.recorded !== fence) { row.recorded = fence; window.changes.push([fence, time]); }
        }
    }));
    new MutationObserver(record).observe(document.querySelector('#rows'),
        { subtree: true, childList: true, characterData: true });
}"""


def main(url: str, server: int | None) -> None:
    with holdfast.Client(url) as client, client.lock("any"):
        pass
    children = [
        subprocess.Popen(
            [sys.executable, __file__, "hold", url, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for number in range(PROCESSES)
    ]
    command = [sys.executable, "-m", "holdfast", "dashboard", "--port", "0", "--url", url]
    dashboard = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert dashboard.stdout is not None
    try:
        changes = _watch(dashboard.stdout.readline().strip(), url, dashboard.pid, server)
        dashboard.terminate()
        dashboard.wait()
        if server is not None:
            print(f"the server used {_share(server):.1%} of a core without the page")
    finally:
        dashboard.kill()
        granted: dict[str, float] = {}
        for child in children:
            granted |= dict(json.loads(child.communicate(b"end\n")[0]))
    latencies = sorted(at / 1000 - granted[fence] for fence, at in changes if fence in granted)
    if not latencies:
        raise SystemExit("no change reached the screen")
    p50, p99 = (latencies[int(len(latencies) * share)] for share in (0.5, 0.99))
    print(f"{len(latencies)} changes reached the screen: p50 {p50:.2f} s, p99 {p99:.2f} s, max {latencies[-1]:.2f} s")
    print(f"load average {os.getloadavg()[0]:.1f}")


def _watch(address: str, url: str, dashboard: int, server: int | None) -> list[tuple[str, int]]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = shutil.which("chromium") or shutil.which("chromium-headless-shell")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(address)
        page.wait_for_selector("#rows tr", timeout=60_000)
        with holdfast.Client(url) as client:
            while (waiting := sum(len(info.waiters) for info in client.locks())) < WAITERS:
                print(f"{waiting} of {WAITERS} wait", file=sys.stderr)
                page.wait_for_timeout(2000)
        page.evaluate(OBSERVE)
        before, server_before = _cpu_seconds(dashboard), _cpu_seconds(server)
        page.wait_for_timeout(SECONDS * 1000)
        cost, server_cost = _cpu_seconds(dashboard) - before, _cpu_seconds(server) - server_before
        held, waits = page.locator("#held").inner_text(), page.locator("#waiting").inner_text()
        print(f"the page shows {held} holders and {waits} waiters")
        changes: list[tuple[str, int]] = page.evaluate("() => window.changes")
        browser.close()
    print(f"the dashboard's process used {cost / SECONDS:.1%} of a core")
    if server is not None:
        print(f"the server used {server_cost / SECONDS:.1%} of a core")
    return changes


def _share(pid: int) -> float:
    """The share of a core that a process uses."""
    before = _cpu_seconds(pid)
    time.sleep(SECONDS)
    return (_cpu_seconds(pid) - before) / SECONDS


def _cpu_seconds(pid: int | None) -> float:
    if pid is None:
        return 0.0
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def hold(url: str, number: int) -> None:
    """In a child: the threads for a part of the locks. At the end, print the time of each grant."""
    granted: list[tuple[str, float]] = []
    client = holdfast.Client(url, ttl=60)

    def take(name: str) -> None:
        while True:
            with client.lock(name) as lease:
                granted.append((str(lease.fence), time.time()))
                time.sleep(random.uniform(10, 50))  # noqa: S311 - no secret

    names = [f"order:{index:03}" for index in range(LOCKS) if index % PROCESSES == number]
    threading.stack_size(256 * 1024)
    for name in names:
        for _ in range(1 + WAITERS // LOCKS):
            threading.Thread(target=take, args=(name,), daemon=True).start()
    sys.stdin.readline()
    print(json.dumps(granted), flush=True)
    os._exit(0)  # its leases end with their ttl; to release them would take long


if __name__ == "__main__":
    if sys.argv[1] == "hold":
        hold(sys.argv[2], int(sys.argv[3]))
    else:
        main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None)
