"""Runs the steps of a build on this machine, and checks its requirements: a few programs, and root privileges.

As root, missing programs are installed with apt-get. Without root, the same steps run in a user namespace, which needs
``uidmap`` and a range in /etc/subuid.
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
"""Program → its Debian package."""

ROOTLESS_TOOLS: Final[Mapping[str, str]] = {"newuidmap": "uidmap", "unshare": "util-linux"}
"""Additional programs for a build without root."""

_GRACE_SECONDS: Final = 3
_NOTHING: Final[Mapping[str, str]] = {}


class BuildError(Exception):
    """The image cannot be built; the message has the reason and a remedy."""


def ensure_tools(report: Report, tools: Mapping[str, str] = TOOLS) -> None:
    """Install missing ``tools``, if this is root. Raises ``BuildError``."""
    # Root needs no user namespace.
    needed = tools if is_root() else {**tools, **ROOTLESS_TOOLS}
    missing = sorted({package for program, package in needed.items() if not _has(program)})
    if not missing:
        return
    command = f"apt-get install --yes --no-install-recommends {' '.join(missing)}"
    if not is_root() or shutil.which("apt-get") is None:
        raise BuildError(f"missing packages: {', '.join(missing)}; install them with: sudo {command}")
    report(f"installing {', '.join(missing)} with apt-get")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for step in ("apt-get update", command):
        done = subprocess.run(step.split(), env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError(f"`{step}` failed: {done.stderr.strip()[-800:]}")


def is_root() -> bool:
    """Return True if this process runs as root."""
    return os.geteuid() == 0


def as_root() -> Sequence[str]:
    """The command prefix that runs a program as root: empty for root, otherwise a user namespace."""
    # --map-auto maps the range in /etc/subuid: the image has files of several users.
    return () if is_root() else ("unshare", "--map-root-user", "--map-auto", "--")


def isolated(work: Path) -> Sequence[str]:
    """The command prefix for mmdebstrap: its children, mounts and temporary files never outlive this process.

    Root needs namespaces for that. Without root, mmdebstrap creates its own, and has its temporary files in /tmp, which
    the users of that namespace can access.
    """
    # In its own namespace, mmdebstrap cleans up on SIGTERM.
    with_parent = ("setpriv", "--pdeathsig")
    if not is_root():
        return (*with_parent, "TERM", "--")
    # When the init process of a PID namespace ends, so do all others; the mounts end with the mount namespace.
    namespace = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--")
    return (*with_parent, "KILL", "--", *namespace, "env", f"TMPDIR={work}")


def check_rootless() -> None:
    """Raise ``BuildError`` with a remedy if this user is not root and cannot create a user namespace."""
    if is_root():
        return
    trial = subprocess.run([*as_root(), "true"], capture_output=True, text=True, check=False)
    if trial.returncode:
        raise BuildError(
            f"without root, the image is built in a user namespace, which cannot be created: {trial.stderr.strip()}. "
            "Either give this user subordinate ids (sudo usermod --add-subuids 100000-165535 "
            "--add-subgids 100000-165535 $USER), or build once as root with the same AUTOSCALE_CACHE."
        )


def run(command: Sequence[str], log: Path, report: Report, environment: Mapping[str, str] = _NOTHING) -> None:
    """Run one step of the build. Its output is written to ``log``; lines that start with ``I:`` are also reported.

    ``environment`` is added to this process's. An interrupted step gets some time to clean up. Raises
    ``BuildError`` with the end of the output.
    """
    with (
        log.open("a") as log_file,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # Its own process group, to signal all programs of a step.
            start_new_session=True,
            env={**os.environ, **environment},
        ) as process,
    ):
        try:
            for line in process.stdout or ():
                log_file.write(line)
                # mmdebstrap reports steps as "I: …"; "running -" lines are about hooks.
                if line.startswith("I: ") and not line.startswith("I: running -"):
                    report(line[3:].strip())
        # Also on KeyboardInterrupt: a step must not outlive this process.
        except BaseException:
            _end(process)
            raise
    if process.returncode:
        raise BuildError(f"`{' '.join(command[:4])} …` failed with code {process.returncode}:\n{tail(log)}")


def tail(log: Path) -> str:
    """The last 15 lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])


def _end(process: subprocess.Popen[str]) -> None:
    """End all programs of a step with SIGTERM, then SIGKILL after a grace period."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        try:
            # ``communicate`` reads while it waits: a full pipe would block the step.
            process.communicate(timeout=_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def _has(program: str) -> bool:
    # Some of these programs are in sbin, which is often not in PATH.
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is not None
