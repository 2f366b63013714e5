"""Requirements of a build on the machine: a few Debian programs, and a way to act as root.

As root, missing programs are installed with apt-get. Without root the same steps run in a user namespace, which needs
``uidmap`` and a range in /etc/subuid; if that is missing, the error says how to get it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from vm_image.store import Report

TOOLS: Final[Mapping[str, str]] = {
    "mmdebstrap": "mmdebstrap",
    "qemu-img": "qemu-utils",
    "qemu-system-x86_64": "qemu-system-x86",
}
"""Program → the Debian package that has it."""

ROOTLESS_TOOLS: Final[Mapping[str, str]] = {"newuidmap": "uidmap", "unshare": "util-linux"}
"""The same, for what a build without root needs in addition."""

_GRACE_SECONDS: Final = 3
_NOTHING: Final[Mapping[str, str]] = {}


class BuildError(Exception):
    """The image cannot be built here; the message says why and what to do about it."""


def ensure_tools(report: Report, tools: Mapping[str, str] = TOOLS) -> None:
    """Makes sure that ``tools`` are there, installing them as root. Raises ``BuildError``."""
    # Root needs no user namespace.
    wanted = tools if is_root() else {**tools, **ROOTLESS_TOOLS}
    missing = sorted({package for program, package in wanted.items() if not _has(program)})
    if not missing:
        return
    command = f"apt-get install --yes --no-install-recommends {' '.join(missing)}"
    if not is_root() or shutil.which("apt-get") is None:
        raise BuildError(f"this machine lacks {', '.join(missing)}; install them with: sudo {command}")
    report(f"installing {', '.join(missing)} with apt-get")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for step in ("apt-get update", command):
        done = subprocess.run(step.split(), env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError(f"`{step}` failed: {done.stderr.strip()[-800:]}")


def is_root() -> bool:
    """Return True if this process may do all that root may."""
    return os.geteuid() == 0


def as_root() -> Sequence[str]:
    """The command prefix that makes a program root over its own files: nothing for root, else a user namespace."""
    # --map-auto uses the range in /etc/subuid, since the image has files of several users.
    return () if is_root() else ("unshare", "--map-root-user", "--map-auto", "--")


def contained(work: Path) -> Sequence[str]:
    """The command prefix that lets no part of a program outlive this process: no child, no mount, no file elsewhere.
    For root that takes a namespace. Without root mmdebstrap makes its own, and keeps its temporary files in /tmp, which
    the users of that namespace can reach.
    """
    # mmdebstrap cleans up on SIGTERM when it runs in a namespace of its own.
    with_parent = ("setpriv", "--pdeathsig")
    if not is_root():
        return (*with_parent, "TERM", "--")
    # The end of a PID namespace's first process ends all others; the mount namespace undoes all mounts.
    namespace = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--")
    return (*with_parent, "KILL", "--", *namespace, "env", f"TMPDIR={work}")


def check_rootless() -> None:
    """Raises ``BuildError`` with the remedy if this user is not root and cannot have a user namespace."""
    if is_root():
        return
    trial = subprocess.run([*as_root(), "true"], capture_output=True, text=True, check=False)
    if trial.returncode:
        raise BuildError(
            f"without root the image is built in a user namespace, and this machine refuses one: "
            f"{trial.stderr.strip()}. Either give this user a range (sudo usermod --add-subuids 100000-165535 "
            f"--add-subgids 100000-165535 $USER), or build once as root and point AUTOSCALE_CACHE to the same place."
        )


def run(command: Sequence[str], log: Path, report: Report, environment: Mapping[str, str] = _NOTHING) -> None:
    """Runs one step of the build; its output goes to ``log`` and lines that start with ``I:`` also to ``report``.
    ``environment`` is added to that of this process. An interrupted step gets some time to clean up. Raises
    ``BuildError`` with the end of the output.
    """
    with (
        log.open("a") as written,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # A process group of its own, so that all programs of a step can be ended together.
            start_new_session=True,
            env={**os.environ, **environment},
        ) as process,
    ):
        try:
            for line in process.stdout or ():
                written.write(line)
                # mmdebstrap reports steps as "I: …"; "running -" lines only name its hooks.
                if line.startswith("I: ") and not line.startswith("I: running -"):
                    report(line[3:].strip())
        # Also on KeyboardInterrupt: a step must not go on without this process.
        except BaseException:
            _end(process)
            raise
    if process.returncode:
        raise BuildError(f"`{' '.join(command[:4])} …` failed with code {process.returncode}:\n{tail(log)}")


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def _end(process: subprocess.Popen[str]) -> None:
    """Ends a step and all of its programs: SIGTERM first, SIGKILL after a grace period."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        try:
            # ``communicate`` reads while it waits: a full pipe would keep the step from ending.
            process.communicate(timeout=_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def _has(program: str) -> bool:
    # PATH of a user may lack sbin, where some of these programs are.
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is not None
