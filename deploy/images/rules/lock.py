"""The locked wheels of an image: the transitive requirements of the project with its extras (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.images.rules.platforms import Platform

PYTHON: Final = "3.11"
"""The Python of Debian 12, on which all images are based."""
_PIN: Final = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)")


class LockError(ValueError):
    """The lock file is invalid, or does not match the environment; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Pin:
    """One locked distribution; ``lines`` is its entry in requirements.txt, hashes included."""

    name: str
    version: str
    lines: str


Lock = Mapping[str, Pin]
"""Pins by normalized name."""


def read_lock(text: str) -> dict[str, Pin]:
    """The pins of a requirements.txt. Raises ``LockError`` for an entry without a version or hash."""
    pinned = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    # The lines of hashes are indented below the pin.
    entries = re.split(r"\n(?=[A-Za-z0-9])", pinned.strip())
    return {pin.name: pin for pin in map(_pin, entries)}


def _pin(entry: str) -> Pin:
    match = _PIN.match(entry)
    if match is None or "--hash=sha256:" not in entry:
        raise LockError(f"requirements.txt: no version or hash in {entry.splitlines()[0]!r}")
    return Pin(canonicalize_name(match["name"]), match["version"], entry)


def closure(
    project: str, extras: Iterable[str], requirements: Mapping[str, Sequence[str]], lock: Lock, platform: Platform
) -> list[Pin]:
    """The pins of all requirements of ``project`` with ``extras`` on ``platform``, sorted by name.

    ``requirements`` are the ``Requires-Dist`` entries of each distribution. Raises ``LockError``.
    """
    # For the image's platform, not for this machine.
    environment = {**platform.markers, "python_version": PYTHON, "python_full_version": f"{PYTHON}.0"}
    # The empty extra selects requirements without one.
    wanted = [(canonicalize_name(project), extra) for extra in ("", *extras)]
    visited: set[tuple[str, str]] = set()
    while wanted:
        name, extra = wanted.pop()
        if (name, extra) in visited:
            continue
        visited.add((name, extra))
        if name not in requirements:
            raise LockError(f"{name} is not installed here, so its requirements are unknown; run: make env")
        for text in requirements[name]:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({**environment, "extra": extra}):
                wanted += [
                    (canonicalize_name(requirement.name), wanted_extra) for wanted_extra in ("", *requirement.extras)
                ]
    names = {name for name, _ in visited} - {canonicalize_name(project)}
    if unknown := sorted(names - lock.keys()):
        raise LockError(f"requirements.txt has no {', '.join(unknown)}")
    return [lock[name] for name in sorted(names)]
