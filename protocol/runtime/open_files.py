"""The limit of open files and sockets of a process."""

from __future__ import annotations

import resource


def open_files_limit() -> int:
    """This process's hard limit of open files; -1 if unlimited."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return -1 if hard == resource.RLIM_INFINITY else hard


def allow_open_files(wanted: int) -> None:
    """Raise the limit of open files of this process and its children to ``wanted``, or to the hard limit if lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    # Never lower it: the process may already have more files open.
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
