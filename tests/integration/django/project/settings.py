"""The settings of the project. A test gives databases and stores as JSON in the environment."""

from __future__ import annotations

import importlib.util
import json
import os
from typing import Any

import pymysql

# mysqlclient is used if PYTHONPATH has it. It has no wheel and needs headers of MySQL, so tests do not install it.
if importlib.util.find_spec("MySQLdb") is None:
    pymysql.install_as_MySQLdb()

HERE = "tests.integration.django.project"

DEBUG = os.environ.get("PROJECT_DEBUG") == "1"
SECRET_KEY = "for tests"  # noqa: S105
ALLOWED_HOSTS = ["127.0.0.1"]
USE_TZ = True
ROOT_URLCONF = f"{HERE}.urls"
WSGI_APPLICATION = f"{HERE}.wsgi.application"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "holdfast.django",
    f"{HERE}.shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
STATIC_URL = "static/"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # fast

DATABASES: dict[str, Any] = json.loads(os.environ["PROJECT_DATABASES"])
if "PROJECT_HOLDFAST" in os.environ:
    HOLDFAST: Any = json.loads(os.environ["PROJECT_HOLDFAST"])
