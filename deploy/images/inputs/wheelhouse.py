"""Downloads locked wheels for a platform with pip, which checks the hashes."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from packaging.utils import canonicalize_name

from deploy.images.rules.lock import PYTHON, Pin
from deploy.images.rules.platforms import Platform
from vm_image import host
from vm_image.store import Report, Store, cache_root


def requirements_here() -> dict[str, list[str]]:
    """Requirements of each distribution installed in this environment."""
    return {
        canonicalize_name(distribution.name): distribution.requires or [] for distribution in metadata.distributions()
    }


def fetch_wheels(pins: Sequence[Pin], platform: Platform, report: Report) -> list[Path]:
    """The wheels of ``pins``, from the cache if possible. Raises ``BuildError``."""
    wanted = "\n".join(pin.lines for pin in pins) + "\n"
    key = hashlib.sha256(f"{platform.name}\n{PYTHON}\n{wanted}".encode()).hexdigest()[:16]
    store = Store(cache_root() / "wheels")
    folder = store.get(key, lambda work: _fetch(work, wanted, platform, report), report)
    return sorted(folder.glob("*.whl"))


def _fetch(work: Path, wanted: str, platform: Platform, report: Report) -> None:
    report(f"fetching locked wheels for {platform.name}")
    requirements = work / "requirements.txt"
    requirements.write_text(wanted)
    # pip does not derive ABIs and compatible tags from --platform.
    abis = (f"cp{PYTHON.replace('.', '')}", "abi3", "none")
    options = [
        *("--require-hashes", "--no-deps", "--only-binary=:all:", "--quiet", "--disable-pip-version-check"),
        *("--implementation=cp", f"--python-version={PYTHON}", f"--requirement={requirements}", f"--dest={work}"),
        *(f"--abi={abi}" for abi in abis),
        *(f"--platform={tag}" for tag in platform.wheel_tags),
    ]
    # -P: do not import modules from the working directory.
    host.run([sys.executable, "-P", "-m", "pip", "download", *options], work / "pip.log", report)
