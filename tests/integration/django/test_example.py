"""The example examples/django_shop does what its text says."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.django.conftest import ROOT, Project
from tests.support.pages import blocks

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


def test_the_code_of_the_page_runs(small_project: Project) -> None:
    small_project.use(default={"DATABASE": "default"}, jobs={"URL": "memory://"})
    examples = [block.code for block in blocks("django.md") if block.language == "python"]
    assert "HOLDFAST" in examples[0]
    program = "\n".join(
        ["from django.test.utils import override_settings", *examples, "refund(None, 7)", "print('ran')"]
    )

    assert small_project.manage("shell", "-v", "0", "-c", program) == "ran\n"
