"""The transfers that this process carries out, one for each migration, and their outcomes.

- A transfer is a task of the group that owns it. When ``cancel`` returns, it has ended.
- Its progress changes at most once a second, and is kept until the migration is forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final

from deploy.neonvm.migration.migration_facts import CANCELLED, Sending, TransferState
from deploy.neonvm.ports import GuestError, NetworkError, TransferError, TransferFault, TransferInfo
from protocol.kubernetes.objects import Json
from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds

Send = Callable[[Callable[[TransferInfo], None]], Awaitable[TransferInfo]]
"""Moves a guest; its argument hears how it goes. Raises as ``Guest.send``."""

_REPORTS: Final = Seconds(1.0)
_CANCELLED: Final = TransferState(Sending.FAILED, CANCELLED, "the move was cancelled")


@dataclass(slots=True)
class _Move:
    transfer: TransferState
    told: Instant
    task: asyncio.Task[None] | None = None


class Transfers:
    """The moves, by the migration's uid. Open while the context is; what is active at its end is cancelled."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks = asyncio.TaskGroup()
        self._moves: dict[str, _Move] = {}

    async def __aenter__(self) -> Transfers:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for move in self._moves.values():
            if move.task is not None:
                move.task.cancel()
        await self._tasks.__aexit__(kind, error, trace)

    def of(self, uid: str) -> TransferState:
        """What is known of the move of that migration."""
        found = self._moves.get(uid)
        return found.transfer if found is not None else TransferState()

    def begin(self, uid: str, send: Send, on_change: Callable[[], None]) -> None:
        """Begins the move; nothing where it has been begun. ``on_change`` hears of its progress and its end."""
        if uid not in self._moves:
            move = self._moves[uid] = _Move(TransferState(Sending.ACTIVE), Instant(self._clock.now() - _REPORTS))
            move.task = self._tasks.create_task(self._carry_out(move, send, on_change))

    async def cancel(self, uid: str) -> None:
        """Ends the move where it is active; returns when it has ended."""
        found = self._moves.get(uid)
        if found is not None and found.task is not None and not found.task.done():
            found.task.cancel()
            await asyncio.wait((found.task,))
            if found.transfer.sending is Sending.ACTIVE:  # it was cancelled before it had begun
                found.transfer = _CANCELLED

    def forget(self, uid: str) -> None:
        """The migration has been cleared away."""
        self._moves.pop(uid, None)

    async def _carry_out(self, move: _Move, send: Send, on_change: Callable[[], None]) -> None:
        def progress(info: TransferInfo) -> None:
            now = self._clock.now()
            if now - move.told >= _REPORTS:
                move.told = now
                move.transfer = replace(move.transfer, info=described(info))
                on_change()

        ended = _CANCELLED
        try:
            ended = TransferState(Sending.DONE, info=described(await send(progress)))
        except TransferError as error:
            ended = TransferState(Sending.FAILED, error.fault.value, str(error))
        except (GuestError, NetworkError, OSError) as error:
            ended = TransferState(Sending.FAILED, TransferFault.REFUSED.value, str(error))
        finally:
            move.transfer = replace(ended, info=ended.info or move.transfer.info)
            on_change()


def described(info: TransferInfo) -> tuple[tuple[str, object], ...]:
    """``status.info`` of a migration: milliseconds, bytes and pages, in the hypervisor's words (pure)."""
    ram = info.ram
    amounts: Json = {
        "total": ram.total.value,
        "transferred": ram.transferred.value,
        "remaining": ram.remaining.value,
        "duplicate": ram.duplicate,
        "normal": ram.normal,
        "normalBytes": ram.normal * ram.page_size.value,
        "dirtyPagesRate": ram.dirty_rate,
        "dirtySyncCount": ram.rounds,
        "pageSize": ram.page_size.value,
    }
    return (
        ("status", info.status.value),
        ("totalTimeMs", _milliseconds(info.total)),
        ("setupTimeMs", _milliseconds(info.setup)),
        ("downtimeMs", _milliseconds(info.downtime)),
        ("ram", amounts),
    )


def _milliseconds(span: Seconds) -> int:
    return round(span * 1000)
