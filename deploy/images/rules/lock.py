"""The locked wheels that an image needs (pure): the closure of extras over each distribution's requirements."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.images.rules.platforms import Platform

PYTHON: Final = "3.11"
"""The Python of Debian 12, which all images have."""
_PIN: Final = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)")


class LockError(ValueError):
    """The lock and what is installed do not fit together; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Pin:
    """One locked distribution; ``lines`` is its entry in requirements.txt, hashes included."""

    name: str
    version: str
    lines: str


Lock = Mapping[str, Pin]
"""The pins by normalized name."""


def read_lock(text: str) -> dict[str, Pin]:
    """The pins of a requirements.txt with hashes. Raises ``LockError`` for an entry without one."""
    pinned = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    # An entry spans several lines: hashes are indented below the pin.
    entries = re.split(r"\n(?=[A-Za-z0-9])", pinned.strip())
    return {pin.name: pin for pin in map(_pin, entries)}


def _pin(entry: str) -> Pin:
    match = _PIN.match(entry)
    if match is None or "--hash=sha256:" not in entry:
        raise LockError(f"requirements.txt must pin a version and hashes of everything, not {entry.splitlines()[0]!r}")
    return Pin(canonicalize_name(match["name"]), match["version"], entry)


def closure(
    project: str, extras: Iterable[str], requirements: Mapping[str, Sequence[str]], lock: Lock, platform: Platform
) -> list[Pin]:
    """The pins that ``project`` with ``extras`` needs on ``platform``, without itself, by name.

    ``requirements`` holds for each distribution what it requires (``Requires-Dist``). Raises ``LockError``.
    """
    # Markers are evaluated for the image's platform, not for this machine.
    environment = {**platform.markers, "python_version": PYTHON, "python_full_version": f"{PYTHON}.0"}
    # The empty extra stands for the requirements without one, since markers compare ``extra`` as a string.
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
