"""A further migration, which a process that has lost the lock must not start."""

from __future__ import annotations

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("shop", "0001_initial")]  # noqa: RUF012
    operations = [migrations.RunPython(migrations.RunPython.noop, migrations.RunPython.noop)]  # noqa: RUF012
