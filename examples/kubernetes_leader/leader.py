"""One of several pods leads: a program for Kubernetes, with probes, which resigns at SIGTERM. leader.yaml starts it.

$HOLDFAST_URL is the store, $TTL and $STOP_MARGIN are options of the election, $POD_NAME and $POD_IP are those of the
pod, and $PORT is the port of the probes /live and /leader.
"""

from __future__ import annotations

import os
import signal
import threading

import uvicorn

import holdfast
import holdfast.asgi

POD = os.environ["POD_NAME"]
STEP = 0.5  # seconds from one step to the next


def main() -> None:
    holdfast.exit_on(signal.SIGTERM)  # SystemExit in this thread: the `with` blocks below are left, and it resigns
    with holdfast.Client() as client:
        election = client.election(
            "dispatcher", ttl=os.environ["TTL"], stop_margin=os.environ["STOP_MARGIN"], meta={"pod": POD}
        )
        serve_probes(election)
        election.run(lead)  # campaigns, leads, and campaigns again after a lost term


def lead(lease: holdfast.Lease) -> None:
    """The work of the leader. `stop_margin` is the time that a step may take after the loss of the term is reported."""
    while not lease.wait_lost(STEP):
        print(f"{POD} dispatches, term {lease.fence}", flush=True)  # send the term along: it is a fence


def serve_probes(election: holdfast.Election) -> None:
    """In a thread of its own. It only reads memory, so that an outage of the store does not restart the pods."""
    probes = uvicorn.Config(
        holdfast.asgi.health(election), host=os.environ["POD_IP"], port=int(os.environ["PORT"]), log_level="warning"
    )
    threading.Thread(target=uvicorn.Server(probes).run, daemon=True).start()


if __name__ == "__main__":
    main()
