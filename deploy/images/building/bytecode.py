"""Compiles the Python modules of a layer, for a fast start on a read-only root."""

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
# Unchecked: the files in images have no modification times to compare.
_COMPILE: Final = """
import json, py_compile, sys
unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
for source, target, shown in json.load(sys.stdin):
    py_compile.compile(source, target, shown, doraise=True, invalidation_mode=unchecked, optimize=0)
"""


def compile_modules(files: Iterable[File], python: Path) -> list[File]:
    """Compile each module in ``files`` with the images' Python, unpacked into ``python``; needs no root privileges.

    Raises ``BuildError``.
    """
    # Sorted: the bytecode depends on the interpreter's state, and so on the order.
    sources = (file for file in files if file.kind is PathType.REGULAR and file.path.endswith(".py"))
    modules = sorted(sources, key=lambda file: file.path)
    with tempfile.TemporaryDirectory(prefix="autoscale-bytecode-") as folder:
        jobs = []
        for number, module in enumerate(modules):
            source = Path(folder, f"{number}.py")
            source.write_bytes(module.content)
            # The last item is the path in the image, which bytecode contains.
            jobs.append((str(source), f"{source}c", f"/{module.path}"))
        _run(jobs, python)
        return [
            File(compiled_path(module.path), Path(job[1]).read_bytes())
            for module, job in zip(modules, jobs, strict=True)
        ]


def _run(jobs: list[tuple[str, str, str]], python: Path) -> None:
    program = python / "usr/bin/python3.11"
    binary = read_binary(program.read_bytes())
    if binary is None:
        raise BuildError(f"{program} is not an ELF file")
    libraries = ":".join(str(folder) for folder in sorted((python / "usr/lib").glob("*-linux-gnu*")))
    # Through the image's dynamic loader: this machine's would use its own libraries. Found by name, because the
    # loader's path in the program is only valid inside the image.
    loader = next(python.glob(f"usr/lib/*-linux-gnu*/{Path(binary.loader).name}"))
    command = [str(loader), "--library-path", libraries, str(program), "-S", "-s", "-B", "-c", _COMPILE]
    # A fixed hash seed, for reproducible sets in bytecode.
    environment = {"PYTHONHOME": str(python / "usr"), "PYTHONHASHSEED": "0", "PATH": os.defpath, "LC_ALL": "C.UTF-8"}
    done = subprocess.run(command, env=environment, input=json.dumps(jobs), text=True, capture_output=True, check=False)
    if done.returncode:
        raise BuildError(f"cannot compile a module: {done.stderr.strip()[-800:]}")


def compiled_path(path: str) -> str:
    """Path of the compiled module in ``__pycache__``."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/__pycache__/{name.removesuffix('.py')}.{_TAG}.pyc"
