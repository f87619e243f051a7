"""The command `holdfast` in a forked process, whose streams have the encoding of a new process with PYTHONUTF8=1."""

from __future__ import annotations

import io
import sys
import time

from holdfast.cli import main

if __name__ == "__main__":
    time.tzset()
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(encoding="utf-8")
    sys.exit(main())
