"""Network namespaces, for the processes of tests and for the tests themselves."""

from __future__ import annotations

import ctypes

_CLONE_NEWNET = 0x40000000


def enter_namespace(namespace: int) -> None:
    """Switch this thread to the namespace of this descriptor: its new sockets, processes and threads belong to it."""
    libc = ctypes.CDLL(None, use_errno=True)  # os.setns exists from Python 3.12 on
    if libc.setns(namespace, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")
