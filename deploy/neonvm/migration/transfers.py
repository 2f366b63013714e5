"""The transfers of this process, one per migration, and their outcomes.

A cancelled transfer ends once it is known which end runs the guest. That takes as long as the source is unreachable, so
nothing waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final

from deploy.neonvm.migration.migration_facts import Sending, TransferState
from deploy.neonvm.ports import GuestError, NetworkError, TransferError, TransferFault
from deploy.neonvm.texts import controller as texts
from deploy.neonvm.transfer_terms import TransferInfo
from protocol.kubernetes.objects import Json
from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds

Send = Callable[[Callable[[TransferInfo], None]], Awaitable[TransferInfo]]
"""Migrates a guest and reports progress to its argument. Raises like ``Guest.send``."""

OnFault = Callable[[Exception], Awaitable[None]]
"""Handles an unexpected exception; the transfer is resumed after a pause."""

_REPORTS: Final = Seconds(1.0)
_CANCELLED: Final = TransferState(Sending.FAILED, *texts.MOVE_CANCELLED)

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _TrackedTransfer:
    state: TransferState
    reported_at: Instant
    task: asyncio.Task[None] | None = None
    has_begun: bool = False
    is_cancelled: bool = False


class Transfers:
    """Transfers by the migration's uid. Leaving the context cancels the active ones."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks = asyncio.TaskGroup()
        self._tracked: dict[str, _TrackedTransfer] = {}

    async def __aenter__(self) -> Transfers:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for tracked in self._tracked.values():
            if tracked.task is not None:
                tracked.task.cancel()
        await self._tasks.__aexit__(kind, error, trace)

    def of(self, uid: str) -> TransferState:
        """State of the migration's transfer."""
        tracked = self._tracked.get(uid)
        return tracked.state if tracked is not None else TransferState()

    def begin(self, uid: str, send: Send, on_change: Callable[[], None], on_fault: OnFault) -> None:
        """Start the transfer, unless it was started before. ``on_change`` is called on progress and at the end."""
        if uid not in self._tracked:
            tracked = self._tracked[uid] = _TrackedTransfer(
                TransferState(Sending.ACTIVE), Instant(self._clock.now() - _REPORTS)
            )
            tracked.task = self._tasks.create_task(self._execute(uid, tracked, send, on_change, on_fault))

    def cancel(self, uid: str) -> None:
        """Cancel an active transfer. It ends once it is known which end runs the guest."""
        tracked = self._tracked.get(uid)
        if tracked is None or tracked.task is None or tracked.is_cancelled:
            return
        tracked.is_cancelled = True
        if tracked.has_begun:  # a task cancelled before its first step would not find out which end has the guest
            tracked.task.cancel()

    def forget(self, uid: str) -> bool:
        """Cancel and drop the transfer of a deleted migration. Return True once it is gone."""
        if self.of(uid).sending is Sending.ACTIVE:
            self.cancel(uid)
            return False
        self._tracked.pop(uid, None)
        return True

    async def _execute(
        self, uid: str, tracked: _TrackedTransfer, send: Send, on_change: Callable[[], None], on_fault: OnFault
    ) -> None:
        def progress(info: TransferInfo) -> None:
            now = self._clock.now()
            # Each change is a write to the API server.
            if now - tracked.reported_at >= _REPORTS:
                tracked.reported_at = now
                tracked.state = replace(tracked.state, info=described(info))
                on_change()

        ended: TransferState | None = None
        tracked.has_begun = True
        try:
            # Cancel within `send`, which then finds out which end has the guest.
            if tracked.is_cancelled and tracked.task is not None:
                tracked.task.cancel()
            ended = TransferState(Sending.DONE, info=described(await send(progress)))
        except TransferError as error:
            ended = TransferState(Sending.FAILED, error.fault.value, str(error))
        except (GuestError, NetworkError, OSError) as error:
            ended = TransferState(Sending.FAILED, TransferFault.REFUSED.value, str(error))
        except asyncio.CancelledError:
            ended = _CANCELLED
            raise
        except Exception as error:  # noqa: BLE001 - one transfer must not end the controller of all others
            _log.exception(texts.MIGRATION_INTERNAL_ERROR, extra={"migration": uid})
            await on_fault(error)
        finally:
            # Internal error: resume the transfer later, as if another process had started it.
            if ended is None:
                self._tracked.pop(uid, None)
            else:
                # Keep the last progress until the migration is deleted.
                tracked.state = replace(ended, info=ended.info or tracked.state.info)
                on_change()


def described(info: TransferInfo) -> Json:
    """``status.info`` of a migration: milliseconds, bytes and pages, with QEMU's names (pure)."""
    ram = info.ram
    amounts: Json = {
        "total": ram.total,
        "transferred": ram.transferred,
        "remaining": ram.remaining,
        "duplicate": ram.duplicate,
        "normal": ram.normal,
        "normalBytes": ram.normal * ram.page_size,
        "dirtyPagesRate": ram.dirty_pages_rate,
        "dirtySyncCount": ram.dirty_sync_count,
        "pageSize": ram.page_size,
    }
    return {
        "status": info.status.value,
        "totalTimeMs": round(info.total * 1000),
        "setupTimeMs": round(info.setup * 1000),
        "downtimeMs": round(info.downtime * 1000),
        "ram": amounts,
    }
