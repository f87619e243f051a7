"""Some commands of tests/support/worker.py, for asyncio. No command blocks the loop."""

from __future__ import annotations

import asyncio
import ctypes
import json
import signal
import sys
import time
from typing import Any

import holdfast

PR_SET_PDEATHSIG = 1


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


async def run(url: str) -> None:
    leases: dict[str, holdfast.AsyncLease] = {}
    client = holdfast.AsyncClient(url)
    _answer({"ready": True})
    while line := await asyncio.to_thread(sys.stdin.readline):
        try:
            answer = await _obey(client, leases, json.loads(line))
        except Exception as error:
            answer = {"error": type(error).__name__, "message": str(error)}
        if answer is None:
            return
        _answer({"at": now(), **answer})


async def _obey(
    client: holdfast.AsyncClient, leases: dict[str, holdfast.AsyncLease], command: dict[str, Any]
) -> dict[str, Any] | None:
    match command["do"]:
        case "acquire":
            lease = await client.lock(command["lock"], ttl=command.get("ttl", 30.0)).acquire(
                timeout=command.get("timeout")
            )
            acquired = now()
            if lease is None:
                return {"acquired": None}
            leases[command["lock"]] = lease
            return {"acquired": acquired, "fence": lease.fence}
        case "release":
            leaving = now()
            await leases[command["lock"]].release()
            return {"leaving": leaving}
        case "check":
            leases[command["lock"]].check()
            return {}
        case "close":
            await client.close()
            return {}
        case _:
            return None


def _answer(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    asyncio.run(run(sys.argv[1]))
