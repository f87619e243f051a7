"""The terminal belongs to one process group at a time; the command needs it while it runs, as under a shell."""

from __future__ import annotations

import os
import signal

_TTY = 0  # standard input


def is_foreground() -> bool:
    """The terminal at our standard input talks to our process group."""
    try:
        return os.tcgetpgrp(_TTY) == os.getpgrp()
    except OSError:
        return False


def may_lend_terminal() -> bool:
    """It talks to us, and we are no part of a pipeline, another part of which may need it too."""
    return is_foreground() and os.isatty(1)


def give_terminal(group: int) -> None:
    """Make this the process group that the terminal talks to, if we are of the group that it talks to now."""
    # Of a background process the kernel asks with SIGTTOU whether it means it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        os.tcsetpgrp(_TTY, group)
    except OSError:
        pass  # it is gone: then nobody needs it
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
