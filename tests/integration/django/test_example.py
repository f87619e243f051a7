"""The example examples/django_shop does what its text says."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.django.conftest import ROOT, Project

SHOP = ROOT / "examples" / "django_shop"


class Shop(Project):
    program = SHOP / "manage.py"


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path, {})
    made.environment |= {"DJANGO_SETTINGS_MODULE": "shop.settings", "SHOP_DB": str(tmp_path / "shop.sqlite3")}
    yield made
    made.end()


def test_the_shop_sells_each_piece_once_and_charges_each_order_once(shop: Shop) -> None:
    shop.manage("locked_migrate", "--verbosity", "0")
    site = shop.serve(
        *(sys.executable, "-m", "gunicorn", "--chdir", str(SHOP), "--workers", "2", "--threads", "4"),
        *("--bind", "127.0.0.1:{port}", "shop.wsgi"),
    )

    with ThreadPoolExecutor(8) as threads:
        bought = list(threads.map(lambda _: site.send("POST", "/buy/lamp/"), range(8)))
        paid = list(threads.map(lambda _: site.send("POST", "/pay/1/"), range(4)))
    invoices = shop.manage("send_invoices")

    orders = [json.loads(body) for status, body in bought if status == 200]
    assert sorted(order["left"] for order in orders) == [0, 1, 2, 3, 4]
    assert [status for status, _ in bought].count(409) == 3
    assert {status for status, _ in paid} == {200}
    assert len({body for _, body in paid}) == 1
    assert invoices == "invoices sent: 1\n"
    assert "Traceback" not in site.stop()


def test_the_migration_of_the_shop_matches_its_models(shop: Shop) -> None:
    assert "No changes detected" in shop.manage("makemigrations", "--check", "--dry-run")
