"""A shop with Django: locks around the stock, payments that happen once, migrations and a nightly job on any server.

    cd examples/django_shop
    python manage.py locked_migrate                       # on each server, when it starts
    gunicorn --workers 2 shop.wsgi
    curl -X POST localhost:8000/buy/lamp/                 # {"order": 1, "left": 4}
    curl -X POST localhost:8000/pay/1/                    # {"order": 1, "payment": "…"}, the same each time
    python manage.py send_invoices                        # one at a time, on all servers together

The database is a file, $SHOP_DB, and the locks are in a file beside it. For several servers, set DATABASES to
PostgreSQL or MySQL: the locks are then in that database.
"""

from __future__ import annotations

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    execute_from_command_line(sys.argv)
