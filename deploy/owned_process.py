"""Command lines of processes that never outlive the one that starts them.

The kernel kills them when the thread that started them ends (PDEATHSIG), so they are started from the main thread.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

_DIE_WITH_PARENT: Final = ("setpriv", "--pdeathsig", "KILL", "--")
_UNLESS_ORPHANED: Final = ("sh", "-c", '[ "$PPID" = "$0" ] && exec "$@"')


def owned(command: Sequence[str], enter: Sequence[str] = ()) -> list[str]:
    """The command line of a child of this process; ``enter`` leads into its network and may fork on its way.

    An owner that dies before its order to the kernel was given is found by its child: its parent is another then.
    """
    last = _DIE_WITH_PARENT if enter else ()
    return [*_DIE_WITH_PARENT, *_UNLESS_ORPHANED, str(os.getpid()), *enter, *last, *command]
