"""The command of `holdfast verify --fault`: request a fault from the process that runs the servers.

A server that is started again must be a child of that process, so that it ends with it.
"""

from __future__ import annotations

import socket
import sys


def main() -> str:
    """Return "" after the fault has happened, or the reason why it failed."""
    path, name = sys.argv[1:]
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(name.encode())
        connection.shutdown(socket.SHUT_WR)
        reply = b"".join(iter(lambda: connection.recv(4096), b""))
    return "the process that runs the servers has ended" if not reply else reply.decode().removeprefix("done").strip()


if __name__ == "__main__":
    sys.exit(main() or 0)
