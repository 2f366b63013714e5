"""Work for threads that is done at once, so that it belongs to the rounds of the event loop, which a test can count."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class AtOnce(ThreadPoolExecutor):
    """An executor without threads: it runs work in ``submit``."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        done: Future[T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - as a thread, which hands every error to whoever waits for it
            done.set_exception(error)
        return done


def work_at_once() -> None:
    """From now on ``asyncio.to_thread`` works in the running event loop itself."""
    asyncio.get_running_loop().set_default_executor(AtOnce())
