"""A process that gets Ctrl-C while it waits for a reply of the server. WorkerPool (tests/support/processes.py) runs it.

    python interrupted.py URL

It reports what it observed; the test decides whether that is right.
"""

from __future__ import annotations

import ctypes
import json
import signal
import sys
from typing import Any

import holdfast

PR_SET_PDEATHSIG = 1


def main(url: str) -> None:
    client = holdfast.Client(url)
    leases: list[holdfast.Lease] = []
    _answer({"ready": True})
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = _obey(client, leases, command)
        except KeyboardInterrupt:
            answer = {"interrupted": True}
        except Exception as error:
            answer = {"error": type(error).__name__, "message": str(error)}
        _answer(answer)
        if command["do"] == "end":
            return


def _obey(client: holdfast.Client, leases: list[holdfast.Lease], command: dict[str, Any]) -> dict[str, Any]:
    match command["do"]:
        case "acquire":
            lease = client.lock(command["lock"], ttl=30).acquire(timeout=command.get("timeout"))
            if lease is None:
                return {"acquired": False}
            leases.append(lease)
            return {"acquired": True, "fence": lease.fence}
        case "release":
            leases[-1].release()
            return {}
        case "body":
            with client.lock(command["lock"], ttl=30):
                _answer({"inside": True})
                sys.stdin.readline()
            return {}
        case "end":
            client.close()
            return {}
        case unknown:
            raise AssertionError(unknown)


def _answer(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    main(sys.argv[1])
