"""Boot trials of accelerators, made with the kernel and the initrd that guests get, and remembered."""

from __future__ import annotations

import asyncio
import hashlib
import os
import platform
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

import msgspec

from deploy.neonvm.ports import GuestError
from deploy.neonvm.qemu.machine import Hypervisor
from vm_image.build import FIRST_LINE, GuestImage

# Seconds of a trial, of the pause between two looks at its console, and until a time-out is tried again.
_LIMIT: Final = 5.0
_LOOK: Final = 0.02
_RETRY_AFTER: Final = 3600.0
_LONGEST: Final = 160

TrialCommand = Callable[[int, Path], Sequence[str]]
"""The QEMU process of a trial: its monitor is an inherited socket, its console is appended to a file."""


class BootVerdict(msgspec.Struct, frozen=True):
    """Verdict of a boot trial: an empty ``fault`` means that the guest booted. ``tried_at`` in seconds since 1970."""

    fault: str
    is_timeout: bool
    tried_at: float

    def holds(self, now: float) -> bool:
        """Return True if it need not be tried again."""
        # A busy host also causes time-outs, so those are tried again. A negative age means that the clock was set back.
        return not self.is_timeout or 0 <= now - self.tried_at < _RETRY_AFTER


@dataclass(frozen=True, slots=True)
class BootTrial:
    """Tries ``command`` if no verdict in ``folder`` holds. ``wall`` is the time in seconds since 1970."""

    hypervisor: Hypervisor
    image: GuestImage
    folder: Path
    wall: Callable[[], float]
    limit: float = _LIMIT

    async def fault(self, command: TrialCommand) -> str:
        """The reason why ``command`` does not boot the image's kernel and initrd; empty if it does. Raises
        ``GuestError``.
        """
        file = self.folder / f"{await self._key(command)}.json"
        verdict = _remembered(file)
        if verdict is None or not verdict.holds(self.wall()):
            verdict = await self._tried(command)
            _remember(file, verdict)
        return verdict.fault

    async def _key(self, command: TrialCommand) -> str:
        """The name of everything that a verdict depends on. Raises ``GuestError``."""
        try:
            contents = await asyncio.to_thread(_contents, self.image.kernel, self.image.initrd)
            host = _host()
        except OSError as error:
            raise GuestError(f"the guest image cannot be read: {error}") from error
        # With a fixed descriptor and path, which change with each trial and decide nothing.
        arguments = [word for word in command(0, Path("console")) if word]
        digest = hashlib.sha256()
        for part in (*contents, *host, await _version(arguments), *arguments):
            # With the length, so that two lists of parts cannot run into the same bytes.
            digest.update(len(part).to_bytes(8, "big") + part.encode())
        return digest.hexdigest()[:24]

    async def _tried(self, command: TrialCommand) -> BootVerdict:
        with tempfile.TemporaryDirectory(prefix="autoscale-boot-") as name:
            folder = Path(name)
            console = folder / "console.log"
            try:
                machine = await self.hypervisor.launch("trial", lambda fd: command(fd, console), folder / "qemu.log")
            except (GuestError, OSError) as error:
                # QEMU's own complaint is the reason; the rest of the message only says that it did not start.
                return BootVerdict(_short(str(error).partition("it said: ")[2] or str(error)), False, self.wall())
            failed = asyncio.ensure_future(machine.failed())
            booted = asyncio.ensure_future(_has_booted(console))
            try:
                # Ends with the first program's line, with QEMU's first sign of failure, or after the limit.
                await asyncio.wait((failed, booted), timeout=self.limit, return_when=asyncio.FIRST_COMPLETED)
            finally:
                failed.cancel()
                booted.cancel()
                await machine.kill()
            # Neither a device that opens nor a virtual CPU proves anything; only the first line of the guest's first
            # program does.
            if _said(console):
                return BootVerdict("", False, self.wall())
            if failed.done() and not failed.cancelled():
                return BootVerdict(_short(f"{failed.result()}; {machine.last_words()}"), False, self.wall())
            return BootVerdict(f"it did not reach its first program within {self.limit:g} s", True, self.wall())


async def _has_booted(console: Path) -> None:
    for _ in count():
        if _said(console):
            return
        await asyncio.sleep(_LOOK)


def _said(console: Path) -> bool:
    return console.exists() and FIRST_LINE.encode() in console.read_bytes()


def _short(story: str) -> str:
    """The first complaint of QEMU, which names itself before each, in at most this many characters."""
    words = " ".join(part.strip() for part in story.split("qemu-system-x86_64: ")[:2]).removesuffix("; nothing")
    return words if len(words) <= _LONGEST else f"{words[:_LONGEST]}…"


def _contents(*files: Path) -> list[str]:
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]


def _host() -> list[str]:
    files = (Path("/etc/machine-id"), Path("/proc/sys/kernel/random/boot_id"))
    names = [file.read_text().strip() for file in files if file.exists()]
    cpu = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    # A new kernel or microcode may change what KVM can do.
    return [platform.release(), *names, *(line for line in cpu if line.startswith(("model name", "flags")))]


async def _version(arguments: Sequence[str]) -> str:
    program = next(word for word in arguments if word.startswith("qemu-system-"))
    process = await asyncio.create_subprocess_exec(
        program, "--version", stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    return output.decode(errors="replace").partition("\n")[0]


def _remembered(file: Path) -> BootVerdict | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=BootVerdict)
    # A verdict in the format of an older release is as good as none.
    except (OSError, msgspec.DecodeError):
        return None


def _remember(file: Path, verdict: BootVerdict) -> None:
    """Keeps the verdict; a cache that cannot be written costs a trial next time."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Renamed when complete: another process may read the cache at any moment.
        descriptor, half = tempfile.mkstemp(dir=file.parent, suffix=".new")
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(msgspec.json.encode(verdict))
        Path(half).replace(file)
    except OSError:
        return
