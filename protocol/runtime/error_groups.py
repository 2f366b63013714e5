"""Errors that task groups have wrapped."""

from __future__ import annotations


def innermost(error: BaseException) -> BaseException:
    """The first error within groups of them, at any depth; an error that is no group is returned itself."""
    return innermost(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error
