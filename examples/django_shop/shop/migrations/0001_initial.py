"""The tables, and a product."""

from __future__ import annotations

from typing import Any, ClassVar

import django.db.models.deletion
from django.db import migrations, models


def fill(apps: Any, _: Any) -> None:
    apps.get_model("shop", "Product").objects.create(sku="lamp", stock=5)


class Migration(migrations.Migration):
    """Run by `manage.py locked_migrate`."""

    initial = True
    operations: ClassVar = [
        migrations.CreateModel(
            "Product",
            [
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("sku", models.CharField(max_length=20, unique=True)),
                ("stock", models.IntegerField(default=0)),
            ],
        ),
        migrations.CreateModel(
            "Order",
            [
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("payment", models.CharField(default="", max_length=40)),
                ("invoiced", models.BooleanField(default=False)),
                ("product", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="shop.product")),
            ],
        ),
        migrations.RunPython(fill, migrations.RunPython.noop),
    ]
