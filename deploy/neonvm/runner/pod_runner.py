"""One guest in its pod, and the operations behind the pod's API.

Only the controller may order a change of the guest (``deploy.neonvm.access``).
"""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass, replace
from typing import Annotated, Final

import msgspec

from deploy.neonvm.guests.qemu_guest import QemuGuest
from deploy.neonvm.ports import FellAsleep, GuestError, GuestPhase, GuestState, SleepingGuest, SleepRefusedError, Woken
from deploy.neonvm.qemu.daemon import DaemonResponse
from deploy.neonvm.qemu.frame_handover import delete_objects
from deploy.neonvm.qemu.machine import Decided
from deploy.neonvm.qemu.reports import OUT_OF_SPACE, parse_run_state
from deploy.neonvm.runner.decisions import Decisions
from deploy.neonvm.runner.frame_return import FrameReturn
from deploy.neonvm.runner.pod_sleep import PodSleep
from deploy.neonvm.runner.qmp_gate import GateState
from deploy.neonvm.runner.sleep_migration import TARGET_NAME, PodDisk, SleepMigration
from deploy.neonvm.runner.tls_identity import TlsIdentity
from deploy.neonvm.sleep.migration_source import SleepingSource
from deploy.neonvm.texts import runner as texts
from protocol.units import Bytes, MilliCpu, Seconds

CREDENTIALS: Final = "migration-tls"
"""QEMU object ID of the current migration's TLS credentials."""

_SHUTDOWN_SECONDS: Final = 3.0


class RunnerStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """Status of the guest: CPU in thousandths, memory in bytes. ``accelerator`` is ``kvm`` or ``tcg``.

    For a sleeping guest, ``saved`` is the size of its memory file in bytes, ``sessions`` the number of open sessions,
    and ``woken_by`` the reason to wake, empty if none. ``sleeps`` is how often it has fallen asleep. ``moves_asleep``:
    it can be migrated while asleep.
    """

    phase: str
    cpu: int
    memory: int
    accelerator: str
    reason: str
    given: bool
    saved: Annotated[int, msgspec.Meta(ge=0, lt=2**62)] = 0
    sessions: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] = 0
    woken_by: str = ""
    sleeps: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] = 0
    moves_asleep: bool = False


_READY: Final = frozenset({GuestPhase.RUNNING, GuestPhase.ASLEEP, GuestPhase.WAKING})
"""A sleeping guest stays ready, so that Services route the packet that wakes it."""


@dataclass(frozen=True, slots=True)
class PodExit:
    """Exit code and termination message of the pod."""

    code: int
    message: str


class PodRunner:
    """Runs one guest. ``flat`` is its flat-network tap, if any; ``accelerator`` is its name and the reason for it.
    ``sleeping_guest`` is the same guest, if it can sleep.
    """

    def __init__(  # noqa: PLR0913 - what a pod has for its guest
        self,
        guest: QemuGuest,
        tls: TlsIdentity,
        accelerator: tuple[str, str],
        flat: FrameReturn | None,
        receives: bool,
        *,
        sleeping_guest: SleepingGuest | None = None,
        disk: PodDisk | None = None,
    ) -> None:
        self._guest = guest
        self.sleep = PodSleep(sleeping_guest)
        self.tls = tls
        self._accelerator = accelerator
        self._receives = receives
        self._has_credentials_for = ""
        self._flat = flat
        self.decisions = Decisions()
        self.sleep_migration = SleepMigration(disk, tls)

    async def run(self, stop: asyncio.Event, grace: Seconds) -> PodExit:
        """Run the guest until it ends, or until ``stop`` and a shutdown of at most ``grace``. Raises ``GuestError``."""
        # Started only once: the pod ends with its guest.
        await (self._guest.receive() if self._receives else self._guest.start())
        ended = asyncio.ensure_future(self._guest.ended())
        stopped = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((ended, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                await self._shut_down(ended, grace)
                return PodExit(0, texts.MIGRATED_AWAY if self.decisions.is_given else texts.POD_STOPPED)
            if self.decisions.is_given:
                return PodExit(0, texts.MIGRATED_AWAY)
            # The guest powered off or failed: the pod is Failed, and the VM's restart policy applies.
            return PodExit(1, texts.GUEST_ENDED.format(why=ended.result()))
        finally:
            for task in (ended, stopped):
                task.cancel()
            await self.sleep.close()
            self.sleep_migration.close()
            await self._guest.stop()
            if self._flat is not None:
                self._flat.close()

    async def _shut_down(self, ended: asyncio.Future[str], grace: Seconds) -> None:
        """Shut down a guest that runs here. One that was migrated away, or has not arrived, is just killed."""
        try:
            async with asyncio.timeout(grace):
                # QEMU comes and goes while a guest falls asleep or wakes.
                await self.sleep.settled()
                # Nothing to flush if the guest was handed over, never arrived, or is asleep.
                if self.decisions.is_given or self.sleep.is_on or not await self._guest.arrived():
                    return
                if not await self._shut_down_by_daemon():
                    # Fallback for guests without the daemon, which shuts the database down first.
                    await self._guest.machine.call("system_powerdown")
                await asyncio.wait((ended,))
        except (GuestError, TimeoutError):
            return  # QEMU's writes are in the host's page cache, so killing it loses no data

    async def _shut_down_by_daemon(self) -> bool:
        try:
            return (await self._guest.daemon.ask("PUT", "/shutdown", seconds=_SHUTDOWN_SECONDS)).status == 200
        except GuestError:
            return False

    async def status(self) -> RunnerStatus:
        """The guest's status; if a migration has paused it, with its last known size. Raises ``GuestError``."""
        # The controller must see a guest paused by a migration, or it would not resume the migration of a dead leader.
        size = await self.state(is_last_enough=True)
        (name, why), fell_asleep = self._accelerator, self.sleep.fell_asleep or FellAsleep(Bytes(0), 0)
        return RunnerStatus(
            size.phase.value,
            size.cpu.value,
            size.mem.value,
            name,
            why,
            self.decisions.is_given,
            fell_asleep.saved.value,
            fell_asleep.sessions,
            self.sleep.woken_by or "",
            self.sleep.sleeps,
            self.sleep_migration.is_possible,
        )

    async def state(self, *, is_last_enough: bool = False) -> GuestState:
        """The guest's state; for one paused by a migration, its last known size if that ``is_last_enough``. Raises
        ``GuestError``.
        """
        # Do not poll a guest that is asleep or falling asleep: its QEMU comes and goes.
        if (asleep := self.sleep.state()) is not None:
            return asleep
        await self._guest.arrived()
        state = (await self._guest.paused_state() if is_last_enough else None) or await self._running_state()
        # It may have fallen asleep meanwhile.
        return self.sleep.state() or state

    async def _running_state(self) -> GuestState:
        try:
            return await self._guest.state()
        except GuestError as error:
            if parse_run_state(await self._guest.machine.call("query-status")) == OUT_OF_SPACE:
                raise GuestError(texts.OUT_OF_SPACE) from error
            raise

    async def is_ready(self) -> bool:
        """Return True if the guest's database accepts connections, or if the guest is asleep."""
        try:
            return (await self.state()).phase in _READY
        except GuestError:
            return False

    @property
    def migration_source(self) -> SleepingSource | None:
        """The sleeping guest as a migration source; None if it is awake, falling asleep or waking."""
        return self.sleep_migration.machine() if self.sleep.fell_asleep is not None else None

    def known_gate_state(self) -> GateState:
        """The part of ``gate_state`` that is known without asking QEMU."""
        migration = self.decisions.undecided
        return GateState(
            is_given=self.decisions.is_given,
            is_open=bool(migration),
            has_certificate=bool(migration) and self._has_credentials_for == migration,
            sleeps=self.sleep.is_on,
            leaves=self.migration_source is not None,
            max_plugged=self._guest.max_plugged.value,
        )

    async def gate_state(self) -> GateState:
        """The state by which the QMP gate allows commands that start or end a migration. Raises ``GuestError``."""
        if self.sleep.is_on:
            return self.known_gate_state()
        has_arrived = await self._guest.arrived()
        # A guest that was sent is paused, so it has a last known size.
        has_sent = has_arrived and await self._guest.paused_state() is not None
        receives, current = self._receives and not has_arrived, self.known_gate_state()
        has_certificate = current.has_certificate or (receives and bool(self._has_credentials_for))
        return replace(current, receives=receives, has_sent=has_sent, has_certificate=has_certificate)

    async def set_cpu(self, use: MilliCpu) -> MilliCpu | None:
        """Set the guest's CPU; return what it then reports. Raises ``GuestError``."""
        if self.decisions.is_given:
            # QEMU may still run for a moment, and would accept the command.
            raise GuestError(texts.MIGRATED_AWAY)
        self._check_awake()
        return await self._guest.set_cpu(use)

    async def set_password(self, password: str) -> None:
        """Set the password of the guest's database. Raises ``GuestError``."""
        self._check_awake()
        await self._guest.set_password(password)

    async def database(self) -> DaemonResponse:
        """Status of the guest's database. Raises ``GuestError``."""
        self._check_awake()
        return await self._guest.daemon.ask("GET", "/database")

    def announce(self) -> None:
        """Redirect frames for the VM to this pod. Does nothing if the VM has no flat-network address."""
        if self._flat is not None:
            self._flat.announce()

    def decide(self, migration: str, requested: Decided) -> Decided:
        """Decide which end has the guest after ``migration``. Raises ``GuestError`` if it is asleep and must stay."""
        if (
            requested is not Decided.KEPT
            and not self.decisions.has_started(migration)
            and self.migration_source is None
        ):
            self._check_awake()
        decision = self.decisions.decide(migration, requested)
        # A late decision about an earlier migration must not undo preparations for the current one.
        if decision is Decided.KEPT and self._flat is not None and self.decisions.is_latest(migration):
            self._flat.keep()
        return decision

    async def settle(self) -> None:
        """After a sleeping guest was handed over, wait until its stand-in has stopped here."""
        if self.decisions.is_given and self.sleep.is_on:
            await self.sleep_migration.hand_over(self._flat)

    async def wake(self, sleeps: int) -> Woken:
        """Wake the guest like ``PodSleep.wake``; this aborts an undecided migration."""
        if self.decisions.is_given:
            raise GuestError(texts.MIGRATED_AWAY)
        if (leaving := self.migration_source) is not None and sleeps == self.sleep.sleeps:
            # Its new QEMU process has no credentials.
            self._has_credentials_for = ""
            if migration := self.decisions.undecided:
                self.decisions.decide(migration, Decided.KEPT)
                await leaving.call("migrate_cancel")
        return await self.sleep.wake(sleeps)

    async def pass_disk(self, address: str) -> None:
        """Send the disk of the sleeping guest to ``address``; a target receives it there. Raises ``GuestError``."""
        if self.sleep.is_on or not self._receives:
            await self.sleep_migration.send_disk(address)
        elif await self._guest.arrived():
            raise GuestError(texts.NO_MIGRATION)
        else:
            await self.sleep_migration.receive_disk(address, self._guest.machine, self._guest.daemon)
            # Only a booted guest falls asleep, so this one is booted as soon as it resumes.
            self._guest.is_booted = True

    async def use_certificate(self, migration: str, certificate: str, authority: str) -> None:
        """Install the certificate and CA of ``migration`` in QEMU. Raises ``GuestError``."""
        if self.migration_source is None:
            self._check_awake()
        is_server = not (self.sleep.is_on or await self._guest.arrived())
        folder = self.tls.files(migration, certificate, authority, is_server=is_server)
        try:
            self.sleep_migration.certify(certificate, authority)
            if self.sleep.is_on:
                self._has_credentials_for = migration
                return
            # Object IDs in QEMU are unique.
            await self._drop_credentials()
            endpoint = "server" if is_server else "client"
            credentials: dict[str, object] = {"qom-type": "tls-creds-x509", "id": CREDENTIALS, "dir": str(folder)}
            await self._guest.machine.call("object-add", {**credentials, "endpoint": endpoint, "verify-peer": True})
            parameters: dict[str, object] = {
                "tls-creds": CREDENTIALS,
                **({} if is_server else {"tls-hostname": TARGET_NAME}),
            }
            await self._guest.machine.call("migrate-set-parameters", parameters)
            self._has_credentials_for = migration
            if not is_server and self._flat is not None:
                # The source gets its certificate right before the migration.
                await self._flat.prepare(self._guest.machine)
        finally:
            # QEMU has read the files. Do not keep the key on disk, even after a failure.
            shutil.rmtree(folder, ignore_errors=True)

    async def _drop_credentials(self) -> None:
        """Delete QEMU's TLS credentials, if any, so that it cannot send the guest. Raises ``GuestError``."""
        self._has_credentials_for = ""
        # QEMU may have them without our knowledge: its response to an earlier attempt was late.
        await delete_objects(self._guest.machine, (CREDENTIALS,))

    async def fall_asleep(self, sleeps: int | None = None) -> FellAsleep:
        """Put the guest to sleep; idempotent. As ``PodSleep.fall_asleep``."""
        return await self.sleep.fall_asleep(self._prepare_sleep, sleeps)

    async def _prepare_sleep(self) -> GuestState:
        """Check that the guest may sleep now, and return its state. Raises ``SleepRefusedError``."""
        if self.decisions.is_given or self.decisions.undecided:
            raise SleepRefusedError(texts.MIGRATION_UNDER_WAY)
        try:
            await self._guest.arrived()
            if await self._guest.paused_state() is not None:
                raise SleepRefusedError(texts.MIGRATION_UNDER_WAY)
            state = await self._guest.state()
            if state.phase is not GuestPhase.RUNNING:
                raise SleepRefusedError(texts.NOT_RUNNING.format(phase=state.phase))
            if self._flat is not None:
                await self._flat.restore()
            await self._drop_credentials()
            # QEMU saves memory by a migration to a file, which must not use TLS.
            await self._guest.machine.call("migrate-set-parameters", {"tls-creds": "", "tls-hostname": ""})
        except GuestError as error:
            raise SleepRefusedError(str(error)) from error
        return state

    def _check_awake(self) -> None:
        """Raises ``GuestError`` if the guest is asleep."""
        if self.sleep.is_on:
            raise GuestError(texts.SLEEPS)
