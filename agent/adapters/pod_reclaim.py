"""A ``MonitorSource`` for pods, which approves a shrink after a trial with the node's reclaimer (B.7).

Rules that hold here:

- Each downscale request starts a trial (``ShrinkTrial``). The reclaimer holds the pod below the new limit until that is
  in force.
- Growth, refaults, stalls, errors and the end of the connection release the pod within a second.
- Without a reclaimer there is no hold, and only a pod that already uses less passes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent import texts
from agent.cgroups.files import read_optional
from agent.cgroups.formats import stalled
from agent.cgroups.locate import Locator
from agent.cgroups.memory import MemoryFiles
from agent.core.monitor.shrink_trial import PodView, ShrinkTrial, TrialVerdict
from agent.ports import MonitorConnection
from agent.reclaimer.messages import LONGEST_LINE, HoldRequest, read_held, write_line
from protocol.guest.monitor_messages import (
    CheckHealth,
    DownscaleRequest,
    DownscaleResult,
    FromMonitor,
    HealthCheck,
    ToMonitor,
    UpscaleConfirmation,
    UpscaleNotification,
)
from protocol.runtime.clock import Clock
from protocol.units import Bytes, Seconds

STEP: Final = Seconds(1.0)
"""Interval between checks of a held pod. The reclaimer releases it after 10 s of silence."""

LARGE_RECLAIM: Final = Bytes(512 * 1024**2)
"""After reclaiming this much in one step, continue immediately: the reclaimer returns early from a long reclaim."""

HOLD_STEPS: Final = 60
"""Steps that a hold lasts after approval. A kubelet lowers the limit within this time, or never."""

ANSWER_TIMEOUT: Final = Seconds(60.0)
"""Timeout of a trial: it takes up to 30 s, and each of its last steps may wait for reclaim."""

REQUEST_TIMEOUT: Final = 5.0
"""Timeout in seconds of one request to the reclaimer."""

RELEASE_TIMEOUT: Final = 1.0
"""Timeout in seconds for the end of a hold."""

MARGIN_V1: Final = 0.15
"""Share of a new limit to keep free: on v1 a pod is reclaimed once per step and fills again in between."""

MARGIN_V2: Final = 0.05
"""On v2 the kernel keeps the pod below its hold, except for per-CPU charge caches."""


class PodReclaim:
    """Trials for one container. ``socket`` is the reclaimer's; None if the node has none."""

    def __init__(self, socket: Path | None, root: Path, pod_uid: str, container_id: str, clock: Clock) -> None:
        self._socket = socket
        self._locator = Locator(root)
        self._pod_uid = pod_uid
        self._container_id = container_id
        self._clock = clock

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[MonitorConnection]:
        """See ``MonitorSource``. Never fails, because without a connection memory would shrink without a trial."""
        async with asyncio.TaskGroup() as tasks:
            connection = _TrialConnection(self, _ReclaimerHold(self._socket, self._pod_uid), self._clock, tasks)
            try:
                yield connection
            finally:
                await connection.release()

    def files(self) -> PodFiles:
        """Locate the cgroup files. Raises ``OSError`` or ``ValueError``."""
        pod, container = self._locator.container(self._pod_uid, self._container_id)
        pressure = container.file("", "memory.pressure") if pod.is_v2 else None
        return PodFiles(MemoryFiles.of(pod), MemoryFiles.of(container), pressure)


@dataclass(frozen=True, slots=True)
class PodFiles:
    """The memory files of a pod and its container; ``pressure`` is None on v1."""

    pod: MemoryFiles
    container: MemoryFiles
    pressure: Path | None

    @property
    def margin(self) -> float:
        """The share of a new limit to keep free."""
        return MARGIN_V1 if self.pressure is None else MARGIN_V2

    def view(self, clock: Clock) -> PodView:
        """Read the memory now. Raises ``OSError`` or ``ValueError``."""
        pod, container = self.pod.read(), self.container.read()
        return PodView(
            at=clock.now(),
            pod_used=Bytes(pod.used),
            pod_limit=None if pod.limit is None else Bytes(pod.limit),
            used=Bytes(container.used),
            limit=None if container.limit is None else Bytes(container.limit),
            refaulted=container.refaulted,
            stall=None if self.pressure is None else read_optional(self.pressure, stalled),
        )


class _TrialConnection:
    """See ``MonitorConnection``. At most one trial runs, in its own task."""

    def __init__(self, pod: PodReclaim, hold: _ReclaimerHold, clock: Clock, tasks: asyncio.TaskGroup) -> None:
        self.version = 1
        self.answer_timeout = ANSWER_TIMEOUT
        self._pod = pod
        self._hold = hold
        self._clock = clock
        self._tasks = tasks
        self._trial: asyncio.Task[None] | None = None
        self._outbox: asyncio.Queue[FromMonitor] = asyncio.Queue()

    async def receive(self) -> FromMonitor:
        """See ``MonitorConnection``."""
        return await self._outbox.get()

    async def send(self, message: ToMonitor, number: int) -> None:
        """See ``MonitorConnection``."""
        match message:
            case CheckHealth():
                self._outbox.put_nowait(HealthCheck(number))
            case DownscaleRequest(target):
                # A hold that continues after an earlier approval moves to the new size.
                await self._stop()
                self._trial = self._tasks.create_task(self._try(number, target.mem))
            case UpscaleNotification():
                await self.release()
                self._outbox.put_nowait(UpscaleConfirmation(number))

    async def release(self) -> None:
        """End the trial and the hold."""
        await self._stop()
        await self._hold.release()

    async def _stop(self) -> None:
        if self._trial is not None:
            self._trial.cancel()
            await asyncio.wait((self._trial,))

    async def _try(self, number: int, target: Bytes) -> None:
        try:
            files = self._pod.files()
            first = files.view(self._clock)
            trial = ShrinkTrial(target, first, files.margin, reclaims=self._hold.is_possible)
        except (OSError, ValueError) as error:
            self._answer(number, _failed_trial(error))
            return
        verdict = await self._verdict(trial, files, first.pod_used)
        if verdict.ok:
            self._answer(number, verdict)
            # An error ends the hold; the kubelet then goes by actual usage.
            with suppress(OSError, ValueError):
                await self._keep_hold(trial, files)
        await self._hold.release()
        if not verdict.ok:
            self._answer(number, verdict)

    def _answer(self, number: int, verdict: TrialVerdict) -> None:
        self._outbox.put_nowait(DownscaleResult(number, verdict.ok, verdict.reason))

    async def _verdict(self, trial: ShrinkTrial, files: PodFiles, used: Bytes) -> TrialVerdict:
        verdict = None
        try:
            while verdict is None:
                await self._hold.at(trial.size)
                view = files.view(self._clock)
                verdict, freed, used = trial.judge(view), used.minus_or_zero(view.pod_used), view.pod_used
                if verdict is None and (freed < LARGE_RECLAIM or used <= trial.size):
                    await self._clock.sleep(STEP)
        except (OSError, ValueError) as error:
            verdict = _failed_trial(error)
        return verdict

    async def _keep_hold(self, trial: ShrinkTrial, files: PodFiles) -> None:
        """Hold the pod until the new limit is in force, does harm, or is overdue."""
        for _ in range(HOLD_STEPS):
            await self._clock.sleep(STEP)
            await self._hold.at(trial.size)
            view = files.view(self._clock)
            if trial.is_in_force(view) or trial.harm(view) is not None:
                return


def _failed_trial(error: Exception) -> TrialVerdict:
    # A TimeoutError has no message.
    return TrialVerdict(False, texts.SHRINK_NOT_TRIED.format(error=str(error) or type(error).__name__))


class _ReclaimerHold:
    """A hold on one pod by the reclaimer at ``path``; it lasts as long as the connection."""

    def __init__(self, path: Path | None, pod_uid: str) -> None:
        self._path = path
        self._pod_uid = pod_uid
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    @property
    def is_possible(self) -> bool:
        """Return True if the node has a reclaimer."""
        return self._path is not None

    async def at(self, size: Bytes) -> None:
        """Reclaim the pod down to ``size`` and hold it there. Raises ``OSError`` or ``ValueError``."""
        if self._path is None:
            return
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                self._streams = self._streams or await asyncio.open_unix_connection(self._path, limit=LONGEST_LINE)
                reader, writer = self._streams
                writer.write(write_line(HoldRequest(self._pod_uid, size.value)))
                await writer.drain()
                line = await reader.readline()
            if not line:
                raise ConnectionResetError(texts.RECLAIMER_ENDED)
            reply = read_held(line)
        except BaseException:
            # A late reply could be mistaken for the next one.
            self._close()
            raise
        if reply.refusal:
            self._close()
            raise ValueError(reply.refusal)

    async def release(self) -> None:
        """End the hold; returns once the reclaimer confirms it, or after a timeout."""
        if self._streams is None:
            return
        reader, writer = self._streams
        try:
            with suppress(OSError):
                writer.write_eof()
                async with asyncio.timeout(RELEASE_TIMEOUT):
                    await reader.read()
        finally:
            self._close()

    def _close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None
