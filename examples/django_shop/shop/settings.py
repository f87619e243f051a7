"""The settings of the shop."""

from __future__ import annotations

import os

SECRET_KEY = os.environ.get("SECRET_KEY", "only for this example")
DEBUG = True
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
ROOT_URLCONF = "shop.urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = ["shop", "holdfast.django"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("SHOP_DB", "shop.sqlite3")}}
HOLDFAST = {"default": {"DATABASE": "default"}}
