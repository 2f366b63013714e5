"""Command lines of child processes that never outlive this process.

The kernel kills a child when the thread that started it ends (PR_SET_PDEATHSIG), so start it from the main thread.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

_DIE_WITH_PARENT: Final = ("setpriv", "--pdeathsig", "KILL", "--")
# If the parent ends before setpriv runs, the child has another parent and must not start.
_UNLESS_ORPHANED: Final = ("sh", "-c", '[ "$PPID" = "$0" ] && exec "$@"')


def owned(command: Sequence[str], enter: Sequence[str] = ()) -> list[str]:
    """The command line of a child process; ``enter`` is the prefix that enters its network namespace, and may fork."""
    # Forked children do not inherit PDEATHSIG, so set it again after `enter`.
    last = _DIE_WITH_PARENT if enter else ()
    return [*_DIE_WITH_PARENT, *_UNLESS_ORPHANED, str(os.getpid()), *enter, *last, *command]
