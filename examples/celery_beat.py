"""Celery beat on every machine: each one sends the task, and one task runs in each period.

    cd examples
    celery -A celery_beat worker --beat -s /tmp/schedule-1 -n one@%h -l INFO        # start it twice, with other names
    celery -A celery_beat worker --beat -s /tmp/schedule-2 -n two@%h -l INFO

Celery requires one beat for the whole fleet: two send every task twice, and if its machine dies no task is sent. With
`once_per` around the task, any number of beats can run. $BROKER_URL is the broker of Celery, $HOLDFAST_URL the store.
"""

from __future__ import annotations

import os

from celery import Celery

import holdfast

app = Celery("celery_beat", broker=os.environ.get("BROKER_URL", "redis://localhost:6379/0"))
app.conf.update(timezone="UTC", beat_max_loop_interval=1)
app.conf.beat_schedule = {"report": {"task": "report", "schedule": 1.0}}

client = holdfast.Client()  # made before the worker forks: each child opens connections of its own


@app.task(name="report")  # above once_per: what it registers is the function with its lock
@client.once_per("2s", name="report", skipped="skipped: this period has its run")
def report() -> str:
    return f"run by process {os.getpid()}"
