"""Limit of the sockets and files that a process may have open."""

from __future__ import annotations

import resource


def open_files_limit() -> int:
    """The hard limit of open files of this process; -1 if there is none."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return -1 if hard == resource.RLIM_INFINITY else hard


def allow_open_files(wanted: int) -> None:
    """Let this process, and those that it starts, open ``wanted`` files at a time, or as many as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    # Never lowered: the process may have files open already.
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
