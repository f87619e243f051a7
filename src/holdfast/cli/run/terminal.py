"""The foreground process group of the terminal. The command needs to be it while it runs, as in a shell."""

from __future__ import annotations

import os
import signal

_TTY = 0  # standard input


def is_foreground() -> bool:
    """Whether our process group is in the foreground of the terminal at standard input."""
    try:
        return os.tcgetpgrp(_TTY) == os.getpgrp()
    except OSError:
        return False


def may_lend_terminal() -> bool:
    """Whether we are in the foreground and not part of a pipeline, where another process may need the terminal."""
    return is_foreground() and os.isatty(1)


def give_terminal(group: int) -> None:
    """Put this process group in the foreground, if ours is in the foreground now."""
    # tcsetpgrp() of a background process raises SIGTTOU.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        os.tcsetpgrp(_TTY, group)
    except OSError:
        pass  # the terminal is gone
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
