"""The program of the project; the tests set DJANGO_SETTINGS_MODULE."""

from __future__ import annotations

import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
