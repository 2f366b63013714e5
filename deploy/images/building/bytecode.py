"""Compiles the modules of a layer with the images' Python, so that services start fast on a read-only root."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from deploy.images.formats.elf import read_binary
from deploy.images.formats.tree import File, PathType
from vm_image.host import BuildError

_TAG: Final = "cpython-311"
# Unchecked: the root is read-only and the files have no times, so there is nothing to compare a source with.
_COMPILE: Final = """
import json, py_compile, sys
unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
for source, target, shown in json.load(sys.stdin):
    py_compile.compile(source, target, shown, doraise=True, invalidation_mode=unchecked, optimize=0)
"""


class Interpreter:
    """The Python of the images, unpacked into ``root``, run without being root."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._program = root / "usr/bin/python3.11"

    def compiled(self, files: Iterable[File]) -> list[File]:
        """The compiled form of each module among ``files``. Raises ``BuildError``."""
        # The order is part of the result: the interpreter's state carries over from one module to the next.
        modules = sorted((file for file in files if is_module(file)), key=lambda file: file.path)
        with tempfile.TemporaryDirectory(prefix="autoscale-bytecode-") as folder:
            jobs = []
            for number, module in enumerate(modules):
                source = Path(folder, f"{number}.py")
                source.write_bytes(module.content)
                # The last part is the path in the image: the compiled file must not name a temporary folder.
                jobs.append((str(source), f"{source}c", f"/{module.path}"))
            self._run(jobs)
            return [
                File(compiled_path(module.path), Path(job[1]).read_bytes())
                for module, job in zip(modules, jobs, strict=True)
            ]

    def _run(self, jobs: list[tuple[str, str, str]]) -> None:
        binary = read_binary(self._program.read_bytes())
        if binary is None:
            raise BuildError(f"{self._program} is no program")
        libraries = ":".join(str(folder) for folder in sorted((self._root / "usr/lib").glob("*-linux-gnu*")))
        # Started by its loader, since ``root`` is no chroot and this machine would use its own libraries. The path in
        # the program leads over a link that is only right within the image.
        loader = next(self._root.glob(f"usr/lib/*-linux-gnu*/{Path(binary.loader).name}"))
        command = [str(loader), "--library-path", libraries, str(self._program), "-S", "-s", "-B", "-c", _COMPILE]
        # Without a fixed hash seed, sets in the compiled files come out in another order each time.
        environment = {"PYTHONHOME": str(self._root / "usr"), "PYTHONHASHSEED": "0", "PATH": os.defpath}
        environment["LC_ALL"] = "C.UTF-8"
        done = subprocess.run(
            command, env=environment, input=json.dumps(jobs), text=True, capture_output=True, check=False
        )
        if done.returncode:
            raise BuildError(f"a module cannot be compiled: {done.stderr.strip()[-800:]}")


def is_module(file: File) -> bool:
    """Return True if it is a Python module."""
    return file.kind is PathType.REGULAR and file.path.endswith(".py")


def compiled_path(path: str) -> str:
    """Path of the compiled form of the module at ``path``, where Python looks for it."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/__pycache__/{name.removesuffix('.py')}.{_TAG}.pyc"
