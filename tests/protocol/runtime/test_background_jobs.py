"""Background jobs of a block: they end with it, and it ends with their errors."""

from __future__ import annotations

import asyncio

import pytest

from protocol.runtime.background_jobs import background_jobs


async def test_jobs_end_with_the_block_and_clean_up() -> None:
    seen = list[str]()

    async def job(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(name)

    async with background_jobs(job("one"), job("two")):
        assert seen == []
    assert seen == ["one", "two"]


async def test_job_error_ends_block_and_other_jobs() -> None:
    ended = list[str]()

    async def fails() -> None:
        raise OSError("gone")

    async def lasts() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("other job")

    with pytest.raises(ExceptionGroup) as caught:
        async with background_jobs(lasts(), fails()):
            await asyncio.Event().wait()
    assert (str(caught.value.exceptions[0]), ended) == ("gone", ["other job"])
