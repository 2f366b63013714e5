"""Child processes that never outlive this process, and commands that do not outlive their call.

The kernel kills a child when the thread that started it ends (PR_SET_PDEATHSIG), so start it from the main thread.
"""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from typing import Final

_DIE_WITH_PARENT: Final = ("setpriv", "--pdeathsig", "KILL", "--")
# If the parent ends before setpriv runs, the child has another parent and must not start.
_UNLESS_ORPHANED: Final = ("sh", "-c", '[ "$PPID" = "$0" ] && exec "$@"')


def owned(command: Sequence[str], enter: Sequence[str] = ()) -> list[str]:
    """The command line of a child process; ``enter`` is a prefix that enters its network namespace and may fork."""
    # Forked children do not inherit PDEATHSIG, so set it again after `enter`.
    last = _DIE_WITH_PARENT if enter else ()
    return [*_DIE_WITH_PARENT, *_UNLESS_ORPHANED, str(os.getpid()), *enter, *last, *command]


async def run_command(*command: str, stdin: str = "") -> tuple[int, str, str]:
    """Run ``command`` with ``stdin`` as its input; return its exit code, output and errors. Raises ``OSError``."""
    # Its own session: Ctrl-C reaches this process only.
    process = await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
    )
    try:
        output, errors = await process.communicate(stdin.encode())
    finally:
        # After a timeout or cancellation, it must not change anything any more.
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, output.decode(errors="replace"), errors.decode(errors="replace").strip()
