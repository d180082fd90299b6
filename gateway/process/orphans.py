"""Orphans: the kernel gives them to process 1 of a container, and they stay zombies until it reaps them."""

from __future__ import annotations

import os
from contextlib import suppress


def reap_orphans() -> None:
    """Reap the children that have ended and were not started here, if this is process 1.

    Those that were started here are waited for where they were started: each leads a session of its own, or is of this
    one (`gateway.process.successor`).
    """
    if os.getpid() != 1:
        return
    own = os.getsid(0)
    with suppress(ChildProcessError):  # there is no child
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if os.getsid(ended.si_pid) in (ended.si_pid, own):
                return  # the kernel names no other one before it is reaped, which is soon
            os.waitpid(ended.si_pid, 0)
