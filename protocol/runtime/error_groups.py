"""Unwraps errors of task groups."""

from __future__ import annotations


def innermost(error: BaseException) -> BaseException:
    """The first leaf of an exception group, at any depth; any other error is returned unchanged."""
    return innermost(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error
