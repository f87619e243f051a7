"""A command for `holdfast run`: it writes the time to a file as long as it lives, and so do its children.

    stamper.py FILE [--children N] [--ignore-term]

Each line has the time (seconds of CLOCK_BOOTTIME), the pid and the fence. It represents the work under a lock.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--children", type=int, default=0)
    parser.add_argument("--ignore-term", action="store_true")
    arguments = parser.parse_args()
    if arguments.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for _ in range(arguments.children):
        # Most programs start others without inherited descriptors.
        subprocess.Popen([sys.executable, __file__, arguments.file], close_fds=True)
    file = os.open(arguments.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
    while True:
        moment = time.clock_gettime(time.CLOCK_BOOTTIME)
        os.write(file, f"{moment:.6f} {os.getpid()} {os.environ['HOLDFAST_FENCE']}\n".encode())
        time.sleep(0.0005)


if __name__ == "__main__":
    main()
