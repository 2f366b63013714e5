"""Command lines of processes that never outlive the one that starts them.

The kernel kills them when the thread that started them ends (PDEATHSIG): start them from the main thread.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

_DIE_WITH_PARENT: Final = ("setpriv", "--pdeathsig", "KILL", "--")
# The parent may die before setpriv has run; then the child has another parent and must not start.
_UNLESS_ORPHANED: Final = ("sh", "-c", '[ "$PPID" = "$0" ] && exec "$@"')


def owned(command: Sequence[str], enter: Sequence[str] = ()) -> list[str]:
    """The command line of a child of this process; ``enter`` leads into its network and may fork on its way."""
    # A child does not inherit the setting, so behind a program that forks, such as nsenter, it is made again.
    last = _DIE_WITH_PARENT if enter else ()
    return [*_DIE_WITH_PARENT, *_UNLESS_ORPHANED, str(os.getpid()), *enter, *last, *command]
