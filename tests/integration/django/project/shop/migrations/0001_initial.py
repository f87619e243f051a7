"""The table and a first row. It waits until $PROJECT_WAITERS other processes wait for the lock of the migration."""

from __future__ import annotations

import os
import time
from typing import Any

from django.db import migrations, models

from holdfast.django import client


def fill(apps: Any, _: Any) -> None:
    while len(client().inspect("django-migrate:default").waiters) < int(os.environ.get("PROJECT_WAITERS", "0")):
        time.sleep(0.05)
    apps.get_model("shop", "Counter").objects.create(name="orders", value=0)


class Migration(migrations.Migration):
    initial = True
    operations = [  # noqa: RUF012
        migrations.CreateModel(
            "Counter",
            [
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=50, unique=True)),
                ("value", models.IntegerField(default=0)),
            ],
        ),
        migrations.RunPython(fill, migrations.RunPython.noop),
    ]
