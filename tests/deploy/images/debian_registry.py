"""Debian's registry, on an address of loopback."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from deploy.images.building.image_build import native_platform
from deploy.images.formats.deb import read_package
from deploy.images.inputs.apt import fetch_packages
from vm_image.recipe import Origin


def registry_program(folder: Path) -> Path:
    """The program, in ``folder``."""
    (package,) = (
        found
        for path in fetch_packages(("docker-registry",), native_platform(), Origin(), print)
        if (found := read_package(path.read_bytes())).name == "docker-registry"
    )
    program = folder / "docker-registry"
    program.write_bytes(next(file.content for file in package.files if file.path == "usr/bin/docker-registry"))
    program.chmod(0o755)
    return program


@contextmanager
def serving(folder: Path, program: Path, port: int, within: Sequence[str] = ()) -> Iterator[str]:
    """Its address. It keeps what is pushed in ``folder``, where another one may read it; ``within`` is the command that
    enters the network in which it listens.
    """
    address = f"127.0.0.1:{port}"
    settings = {"version": "0.1", "storage": {"filesystem": {"rootdirectory": str(folder / "data")}}}
    config = folder / "config.yml"
    config.write_text(json.dumps(settings | {"http": {"addr": address}, "log": {"level": "warn"}}))
    command = [*within, str(program), "serve", str(config)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _until_answered(address, within)
            yield address
        finally:
            process.terminate()


def _until_answered(address: str, within: Sequence[str]) -> None:
    host, _, port = address.partition(":")
    knock = [*within, "bash", "-c", f"exec 3<>/dev/tcp/{host}/{port}"]
    for _ in range(100):
        if subprocess.run(knock, capture_output=True, check=False).returncode == 0:
            return
        time.sleep(0.1)
    raise AssertionError(f"nothing answers at {address}")
