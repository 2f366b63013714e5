"""Trial boots of an accelerator with the kernel and initrd of the guests; results are cached on disk."""

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
from deploy.owned_process import run_command
from vm_image.build import FIRST_LINE, GuestImage
from vm_image.recipe import cache_key

# Seconds: timeout of a trial, poll interval of its console, and time until a timeout is retried.
_TIMEOUT: Final = 5.0
_POLL: Final = 0.02
_RETRY_AFTER: Final = 3600.0
_MAX_REASON: Final = 160

TrialCommand = Callable[[int, Path], Sequence[str]]
"""QEMU command of a trial, from the file descriptor of its monitor and the path of its console log."""


class BootVerdict(msgspec.Struct, frozen=True):
    """Result of a trial boot: ``fault`` is empty if the guest booted. ``tried_at`` is Unix time."""

    fault: str
    is_timeout: bool
    tried_at: float

    def is_valid(self, now: float) -> bool:
        """Return True if the trial need not be repeated."""
        # Timeouts are retried, because a busy host causes them too. A negative age means that the clock was set back.
        return not self.is_timeout or 0 <= now - self.tried_at < _RETRY_AFTER


@dataclass(frozen=True, slots=True)
class BootTrial:
    """Boots a trial guest unless a valid result is cached in ``folder``. ``wall`` returns Unix time."""

    hypervisor: Hypervisor
    image: GuestImage
    folder: Path
    wall: Callable[[], float]
    limit: float = _TIMEOUT

    async def fault(self, command: TrialCommand) -> str:
        """The reason why ``command`` does not boot the image's kernel and initrd; empty if it does. Raises
        ``GuestError``.
        """
        file = self.folder / f"{await self._key(command)}.json"
        verdict = _cached(file)
        if verdict is None or not verdict.is_valid(self.wall()):
            verdict = await self._run_trial(command)
            _cache(file, verdict)
        return verdict.fault

    async def _key(self, command: TrialCommand) -> str:
        """Cache key: a digest of everything that the result depends on. Raises ``GuestError``."""
        try:
            contents = await asyncio.to_thread(_contents, self.image.kernel, self.image.initrd)
            host = _host()
        except OSError as error:
            raise GuestError(f"cannot read the guest image: {error}") from error
        # With a fixed descriptor and path, because those differ between trials.
        arguments = [word for word in command(0, Path("console")) if word]
        return cache_key(*(part.encode() for part in (*contents, *host, await _version(arguments), *arguments)))

    async def _run_trial(self, command: TrialCommand) -> BootVerdict:
        with tempfile.TemporaryDirectory(prefix="autoscale-boot-") as name:
            folder = Path(name)
            console = folder / "console.log"
            try:
                machine = await self.hypervisor.launch("trial", lambda fd: command(fd, console), folder / "qemu.log")
            except (GuestError, OSError) as error:
                # Keep only the output of QEMU; the rest of the message just says that it did not start.
                return BootVerdict(_short(str(error).partition("its output: ")[2] or str(error)), False, self.wall())
            failed = asyncio.ensure_future(machine.failed())
            booted = asyncio.ensure_future(_has_booted(console))
            try:
                # Until the first line of init, a failure of QEMU, or the timeout.
                await asyncio.wait((failed, booted), timeout=self.limit, return_when=asyncio.FIRST_COMPLETED)
            finally:
                failed.cancel()
                booted.cancel()
                await machine.kill()
            # Only the first line of the guest's init proves that the accelerator works.
            if _has_first_line(console):
                return BootVerdict("", False, self.wall())
            if failed.done() and not failed.cancelled():
                return BootVerdict(_short(f"{failed.result()}; {machine.output_tail()}"), False, self.wall())
            return BootVerdict(f"init did not start within {self.limit:g} s", True, self.wall())


async def _has_booted(console: Path) -> None:
    for _ in count():
        if _has_first_line(console):
            return
        await asyncio.sleep(_POLL)


def _has_first_line(console: Path) -> bool:
    return console.exists() and FIRST_LINE.encode() in console.read_bytes()


def _short(message: str) -> str:
    """The first error message of QEMU, which starts each with its program name; truncated."""
    words = " ".join(part.strip() for part in message.split("qemu-system-x86_64: ")[:2]).removesuffix("; nothing")
    return words if len(words) <= _MAX_REASON else f"{words[:_MAX_REASON]}…"


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
    _, output, _ = await run_command(program, "--version")
    return output.partition("\n")[0]


def _cached(file: Path) -> BootVerdict | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=BootVerdict)
    # An entry in the format of an older release counts as a miss.
    except (OSError, msgspec.DecodeError):
        return None


def _cache(file: Path, verdict: BootVerdict) -> None:
    """Cache the result. If that fails, the next start repeats the trial."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Written atomically: other processes may read the cache at any time.
        descriptor, half = tempfile.mkstemp(dir=file.parent, suffix=".new")
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(msgspec.json.encode(verdict))
        Path(half).replace(file)
    except OSError:
        return
