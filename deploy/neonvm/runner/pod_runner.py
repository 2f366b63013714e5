"""One guest in its pod, and what others may ask of it: the work behind the pod's API.

Orders come from the controller alone (``deploy.neonvm.access``).
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import msgspec
from cryptography import x509

from deploy.neonvm.ports import GuestError, GuestPhase, GuestState
from deploy.neonvm.qemu.daemon import DaemonResponse
from deploy.neonvm.qemu.machine import Decided, Machine
from deploy.neonvm.qemu.qemu_guest import QemuGuest
from deploy.neonvm.runner.decisions import Decisions
from deploy.neonvm.runner.qmp_gate import GateState
from deploy.neonvm.texts import runner as texts
from protocol.runtime.certificates.issuing import new_key, private_pem, signing_request
from protocol.units import MilliCpu, Seconds


class TlsIdentity:
    """Requests and certificates of one pod, for one migration each. ``folder`` is where the files are while QEMU reads
    them. The key never leaves the pod, so no secret is ever sent or stored.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        self._folder = folder
        self._key = new_key()
        self._move = ""

    def request(self, move: str) -> str:
        """A signing request for the certificate of ``move``, PEM; a key of its own for each move."""
        if move != self._move:
            # A repeated request of one move keeps its key, so that a certificate on its way still fits.
            self._key, self._move = new_key(), move
        return signing_request(self._name, self._key).decode()

    def files(self, move: str, certificate: str, authority: str, *, is_server: bool) -> Path:
        """A folder as QEMU's ``tls-creds-x509`` reads it. Raises ``GuestError`` for a certificate that does not fit."""
        try:
            parsed = x509.load_pem_x509_certificate(certificate.encode())
        except ValueError as error:
            raise GuestError(texts.CERTIFICATE_UNREADABLE.format(error=error)) from error
        # A late answer for an earlier move would leave QEMU with a certificate that does not fit its key.
        if move != self._move or parsed.public_key() != self._key.public_key():
            raise GuestError(texts.OTHER_KEY)
        folder = Path(tempfile.mkdtemp(prefix="tls-", dir=self._folder))
        role = "server" if is_server else "client"
        (folder / "ca-cert.pem").write_text(authority)
        (folder / f"{role}-cert.pem").write_text(certificate)
        # Made with its mode before the secret is written, so that nobody can open it in between.
        (folder / f"{role}-key.pem").touch(mode=0o600)
        (folder / f"{role}-key.pem").write_bytes(private_pem(self._key))
        return folder

    @staticmethod
    def forget(place: Path) -> None:
        """QEMU has read the files."""
        shutil.rmtree(place, ignore_errors=True)


CREDENTIALS: Final = "migration-tls"
"""QEMU's name for the certificate of the present migration."""

TARGET_NAME: Final = "target.migration.local"
"""The host name in the certificate of a migration's target."""

_SHUTDOWN_SECONDS: Final = 3.0


class RunnerStatus(msgspec.Struct, frozen=True):
    """The pod's report about its guest: CPU in thousandths, memory in bytes. ``accelerator`` is ``kvm`` or ``tcg``."""

    phase: str
    cpu: int
    memory: int
    accelerator: str
    reason: str
    given: bool


class FlatPlace(Protocol):
    """The guest's place on the flat network, seen from its pod."""

    def announce(self) -> None:
        """Redirects frames for the VM to this pod."""

    async def prepare(self, machine: Machine) -> None:
        """The guest is about to be sent: from its stop on, what it has not read goes back to the network. Raises
        ``GuestError`` if an earlier preparation cannot be undone.
        """

    def keep(self) -> None:
        """The guest stays, and reads its frames itself."""

    def close(self) -> None:
        """QEMU has ended."""


@dataclass(frozen=True, slots=True)
class Ending:
    """End of the pod."""

    code: int
    story: str


class PodRunner:
    """One guest. ``flat`` is its place on the flat network, if it has one; ``accelerator`` is its name and why."""

    def __init__(
        self, guest: QemuGuest, tls: TlsIdentity, accelerator: tuple[str, str], flat: FlatPlace | None, receives: bool
    ) -> None:
        self._guest = guest
        self.tls = tls
        self._accelerator = accelerator
        self._receives = receives
        self._has_credentials_for = ""
        self._flat = flat
        self.decisions = Decisions()

    async def run(self, stop: asyncio.Event, grace: Seconds) -> Ending:
        """Runs the guest to its end, or until ``stop`` and then ``grace`` to end in order. Raises ``GuestError``."""
        # Exactly once: a guest that has ended is never started again here. The pod ends with it, and says why.
        await (self._guest.receive() if self._receives else self._guest.start())
        ended = asyncio.ensure_future(self._guest.ended())
        stopped = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((ended, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                await self._shut_down(ended, grace)
                return Ending(0, texts.MOVED_AWAY if self.decisions.is_given else texts.TOLD_TO_END)
            if self.decisions.is_given:
                return Ending(0, texts.MOVED_AWAY)
            # The guest switched itself off or broke: the pod is Failed, and the VM's restart policy applies.
            return Ending(1, texts.GUEST_ENDED.format(why=ended.result()))
        finally:
            for task in (ended, stopped):
                task.cancel()
            await self._guest.stop()
            if self._flat is not None:
                self._flat.close()

    async def _shut_down(self, ended: asyncio.Future[str], grace: Seconds) -> None:
        """A guest that is ours writes what it has and switches itself off; one that is elsewhere is just ended."""
        # A guest that was given away, or never arrived, has nothing to write here.
        if self.decisions.is_given or not await self._is_here():
            return
        try:
            async with asyncio.timeout(grace):
                if not await self._tells_daemon():
                    # The daemon shuts the database down in order; ACPI's button is for guests without the daemon.
                    await self._guest.machine.call("system_powerdown")
                await asyncio.wait((ended,))
        except (GuestError, TimeoutError):
            return  # QEMU's writes are in the host's page cache, so ending it loses no data

    async def _tells_daemon(self) -> bool:
        try:
            return (await self._guest.daemon.ask("PUT", "/shutdown", seconds=_SHUTDOWN_SECONDS)).status == 200
        except GuestError:
            return False

    async def _is_here(self) -> bool:
        try:
            return await self._guest.arrived()
        except GuestError:
            return False

    async def status(self) -> RunnerStatus:
        """The guest's size; for one that is paused in a move, its last size. Raises ``GuestError``."""
        await self._guest.arrived()
        # A controller must see a guest that is paused in a move, or nobody takes up the move of a dead leader.
        size = await self._guest.standing() or await self._guest.state()
        name, why = self._accelerator
        return RunnerStatus(size.phase.value, size.cpu.value, size.mem.value, name, why, self.decisions.is_given)

    async def state(self) -> GuestState:
        """The guest's size. Raises ``GuestError``."""
        await self._guest.arrived()
        return await self._guest.state()

    async def is_ready(self) -> bool:
        """Return True if the guest runs and its database answers."""
        try:
            return (await self.state()).phase is GuestPhase.RUNNING
        except GuestError:
            return False

    def known_standing(self) -> GateState:
        """The state the gate asks for, if it is known without QEMU."""
        return GateState(is_given=self.decisions.is_given, most_plugged=self._guest.most_plugged.value)

    async def standing(self) -> GateState:
        """The state that the gate needs to pass a command that begins or ends a move. Raises ``GuestError``."""
        has_arrived = await self._guest.arrived()
        # A guest that was sent is paused after its move, and so has a last size.
        has_sent = has_arrived and await self._guest.standing() is not None
        receives, move, certified_move = (
            self._receives and not has_arrived,
            self.decisions.open_move,
            self._has_credentials_for,
        )
        return GateState(
            is_given=self.decisions.is_given,
            receives=receives,
            has_sent=has_sent,
            is_open=bool(move),
            has_certificate=bool(certified_move) and (receives or certified_move == move),
            most_plugged=self._guest.most_plugged.value,
        )

    async def set_cpu(self, use: MilliCpu) -> MilliCpu | None:
        """Gives the guest this much CPU; what it then says that it has. Raises ``GuestError``."""
        if self.decisions.is_given:
            # QEMU may still be there for a moment, and would take the order.
            raise GuestError(texts.MOVED_AWAY)
        return await self._guest.set_cpu(use)

    async def set_password(self, password: str) -> None:
        """Sets the password of the guest's database. Raises ``GuestError``."""
        await self._guest.set_password(password)

    async def database(self) -> DaemonResponse:
        """Status of the guest's database. Raises ``GuestError``."""
        return await self._guest.daemon.ask("GET", "/database")

    def announce(self) -> None:
        """Redirects frames for the VM to this pod. A VM that is not on the flat network gets another address."""
        if self._flat is not None:
            self._flat.announce()

    def decide(self, move: str, wanted: Decided) -> Decided:
        """Owner of the guest after ``move``."""
        decision = self.decisions.decide(move, wanted)
        # A late order about an earlier move must not undo what the present one has prepared.
        if decision is Decided.KEPT and self._flat is not None and self.decisions.is_present(move):
            self._flat.keep()
        return decision

    async def use_certificate(self, move: str, certificate: str, authority: str) -> None:
        """QEMU shows this certificate, and trusts this authority alone, from now on. Raises ``GuestError``."""
        is_server = not await self._guest.arrived()
        folder = self.tls.files(move, certificate, authority, is_server=is_server)
        try:
            if self._has_credentials_for:
                # QEMU refuses a second object with the same id.
                await self._guest.machine.call("object-del", {"id": CREDENTIALS})
                self._has_credentials_for = ""
            endpoint = "server" if is_server else "client"
            credentials: dict[str, object] = {"qom-type": "tls-creds-x509", "id": CREDENTIALS, "dir": str(folder)}
            await self._guest.machine.call("object-add", {**credentials, "endpoint": endpoint, "verify-peer": True})
            parameters: dict[str, object] = {
                "tls-creds": CREDENTIALS,
                **({} if is_server else {"tls-hostname": TARGET_NAME}),
            }
            await self._guest.machine.call("migrate-set-parameters", parameters)
            self._has_credentials_for = move
            if not is_server and self._flat is not None:
                # The certificate of the source is the last step before the move itself.
                await self._flat.prepare(self._guest.machine)
        finally:
            # QEMU has read the files into memory; the key must not stay on disk, even after a failure.
            self.tls.forget(folder)
