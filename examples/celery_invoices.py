"""Invoices with Celery: each is charged once, and the postings of one account never run at the same time.

    cd examples
    celery -A celery_invoices worker -l INFO          # start it on several machines
    python celery_invoices.py 7 7 8                   # sends invoice 7 twice, and invoice 8

$BROKER_URL is the broker and result backend of Celery, $HOLDFAST_URL the store. Kill a worker in the middle: the
invoice is charged by another one.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from celery import Celery

import holdfast
import holdfast.celery

broker = os.environ.get("BROKER_URL", "redis://localhost:6379/0")
app = Celery("celery_invoices", broker=broker, backend=broker)
# A message is acknowledged when its task has ended. If a process dies, the message is delivered again.
app.conf.task_acks_late = True
app.conf.task_reject_on_worker_lost = True

client = holdfast.Client(ttl=10)  # made before the worker forks: each child opens connections of its own


@app.task(name="charge")
@holdfast.celery.once(client)
def charge(invoice: int) -> dict[str, Any]:
    """Charge an invoice. A payment provider takes the invoice as its idempotency key, for a run that died."""
    print(f"charge invoice {invoice}", flush=True)
    post.delay(account=invoice % 2, invoice=invoice)
    return {"invoice": invoice, "process": os.getpid()}


@app.task(name="post")
@holdfast.celery.exclusive(client, "account:{account}", countdown="1s", lease="lease")
def post(lease: holdfast.Lease, account: int, invoice: int) -> None:
    """Post an invoice to its account. If the lease is lost, the task is interrupted."""
    print(f"account {account}: begin of invoice {invoice}, fence {lease.fence}", flush=True)
    time.sleep(0.2)  # read the balance, and write the new one with the fence
    print(f"account {account}: end of invoice {invoice}, fence {lease.fence}", flush=True)


if __name__ == "__main__":
    for number in map(int, sys.argv[1:]):
        sent = holdfast.celery.apply_once(charge, f"invoice:{number}", retention="10m", args=[number])
        print(f"invoice {number}: message {sent.id}, {sent.get(timeout=60)}")
