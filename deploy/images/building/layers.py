"""Builds the layers of an image, bottom up; a layer comes from the cache if its inputs have not changed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Final, assert_never

from deploy.images.building.bytecode import compile_modules
from deploy.images.building.layer_store import StoredLayer, files_of, layer_key, stored_layer
from deploy.images.catalogue import GUEST, PYTHON, GuestDisk, GuestKernel, Image, ImageSources, Layer, Packages, Wheels
from deploy.images.formats.deb import Package, read_package
from deploy.images.formats.tree import File, PathType, Tree, changed_entries, symlink, tree
from deploy.images.formats.wheel import wheel_files
from deploy.images.inputs import apt
from deploy.images.inputs.checkout import Checkout
from deploy.images.inputs.wheelhouse import fetch_wheels, requirements_here
from deploy.images.rules.base_files import dpkg_status, program, system_files
from deploy.images.rules.contents import is_included, without_unused_libraries
from deploy.images.rules.lock import Pin, closure
from deploy.images.rules.platforms import Platform
from vm_image import host
from vm_image.build import DPKG_STATUS, GuestImage, busybox_of, ensure_image, inputs_of, packages_of
from vm_image.host import BuildError
from vm_image.recipe import Origin
from vm_image.store import Report, Store, cache_root

# NeonVM's init container runs ``sh -c "mv /disk.qcow2 … && chown … && sysctl …"`` in the image.
COMMANDS: Final = ("sh", "mv", "chown", "sysctl", "cp", "ls")


def disk_files(image: GuestImage, report: Report) -> list[File]:
    """The disk of a guest image, and the commands to copy it."""
    report("packing the root disk (qcow2)")
    with tempfile.TemporaryDirectory(prefix="autoscale-pack-") as work:
        disk = Path(work, "disk.qcow2")
        # -c: compressed.
        convert = ["qemu-img", "convert", "-c", "-f", "raw", "-O", "qcow2", str(image.disk), str(disk)]
        host.run(convert, Path(work, "convert.log"), report)
        return with_commands(disk.read_bytes(), busybox_of(image), packages_of(image))


def with_commands(disk: bytes, busybox: bytes, packages: bytes) -> list[File]:
    """The files of a guest's image; ``packages`` is the disk's dpkg status file."""
    links = (symlink(f"bin/{name}", "busybox") for name in COMMANDS)
    # The status file is outside the disk too, for vulnerability scanners.
    return [File("bin/busybox", busybox, 0o755), *links, File("disk.qcow2", disk), File(DPKG_STATUS, packages)]


def write_tree(files: Tree, folder: Path) -> None:
    """Write ``files`` below ``folder``, owned by the current user."""
    # Sorted: directories before their contents.
    for name in sorted(files):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(files[name], path)


def _write(file: File, path: Path) -> None:
    if file.kind is PathType.SYMLINK:
        path.symlink_to(file.target)
        return  # chmod would follow the link
    if file.kind is PathType.DIRECTORY:
        path.mkdir(exist_ok=True)
    else:
        path.write_bytes(file.content)
    path.chmod(file.mode)


@dataclass(frozen=True)
class LayerMaker:
    """Builds layers for one platform. ``native`` is this machine's platform, whose Python compiles modules."""

    checkout: Checkout
    platform: Platform
    native: Platform
    origin: Origin
    report: Report

    def layers_of(self, image: Image) -> list[StoredLayer]:
        """The layers of an image. Raises ``BuildError`` and ``LockError``."""
        made: list[StoredLayer] = []
        for number, layer in enumerate(image.layers):
            self.report(f"{image.name}: {layer.name}")
            made.append(self._layer(layer, image.layers[:number], made))
        # The program's file is a separate layer, so that other images can share all layers below.
        if image.starts:
            files = tree(self._with_bytecode([program(image.name, image.starts)]))
            made.append(stored_layer(layer_key([b"program", *_contents(files)]), lambda: files, self.report))
        return made

    def _layer(self, layer: Layer, below: Sequence[Layer], made: Sequence[StoredLayer]) -> StoredLayer:
        match layer:
            case Packages():
                return self._package_layer(layer, tuple(made))
            case Wheels():
                return self._wheel_layer(layer, [lower for lower in below if isinstance(lower, Wheels)])
            case ImageSources():
                return self._source_layer(layer)
            case GuestDisk() if self.platform.name != GUEST:
                message = f"the guest's disk is built for {GUEST} only: leave postgres-vm out for {self.platform.name}"
                raise BuildError(message)
            case GuestDisk():
                image = self._guest_image
                # The key depends on the inputs, because building the disk takes minutes.
                key = layer_key([b"guest-disk and its packages", inputs_of(image).encode()])
                return stored_layer(key, lambda: tree(disk_files(image, self.report)), self.report)
            case GuestKernel():
                image = self._guest_image
                key = layer_key([b"guest-kernel", inputs_of(image).encode()])
                paths = (image.kernel, image.initrd)
                files = (File(f"vm/kernel/{path.name}", path.read_bytes()) for path in paths)
                return stored_layer(key, lambda: tree(files), self.report)
            case _:
                assert_never(layer)

    def _package_layer(self, layer: Packages, made: Sequence[StoredLayer]) -> StoredLayer:
        fetched = apt.fetch_packages(layer.packages, self.platform, self.origin, self.report)
        # Unused libraries depend on the layers below, so the key includes them.
        below = (lower.diff_id for lower in made)
        key = layer_key([repr(layer).encode(), *(part.encode() for part in (*(path.name for path in fetched), *below))])

        def make() -> Tree:
            lower = merged(made)
            packages = _read(fetched)
            files = changed_entries(lower, _files_of_packages(layer, packages, lower))
            compiled = compile_modules(files.values(), self._python)
            return {**files, **tree((*dpkg_status(packages, files), *compiled))}

        return stored_layer(key, make, self.report)

    def _wheel_layer(self, layer: Wheels, below: Sequence[Wheels]) -> StoredLayer:
        extras = [extra for lower in below for extra in lower.extras]
        present = {pin.name for pin in self._closure(extras)} if below else set()
        pins = [pin for pin in self._closure([*extras, *layer.extras]) if pin.name not in present]
        fetched = fetch_wheels(pins, self.platform, self.report)

        def make() -> Tree:
            files = (file for path in fetched for file in wheel_files(path.read_bytes()))
            return tree(self._with_bytecode(files))

        # The pins include hashes of the wheels.
        key = layer_key([repr(layer).encode(), self.platform.name.encode(), *(pin.lines.encode() for pin in pins)])
        return stored_layer(key, make, self.report)

    def _source_layer(self, layer: ImageSources) -> StoredLayer:
        files = list(chain.from_iterable(self.checkout.package_files(package) for package in layer.packages))
        key = layer_key([repr(layer).encode(), *_contents(tree(files))])
        return stored_layer(key, lambda: tree(self._with_bytecode(files)), self.report)

    def _closure(self, extras: Iterable[str]) -> list[Pin]:
        checkout = self.checkout
        requirements = {**requirements_here(), checkout.name: checkout.requirements}
        return closure(checkout.name, extras, requirements, checkout.lock, self.platform)

    def _with_bytecode(self, files: Iterable[File]) -> list[File]:
        sources = list(files)
        return [*sources, *compile_modules(sources, self._python)]

    @cached_property
    def _guest_image(self) -> GuestImage:
        return ensure_image(self.report, self.origin)

    @cached_property
    def _python(self) -> Path:
        # This machine's, also for other platforms: bytecode is portable.
        fetched = apt.fetch_packages(PYTHON.packages, self.native, self.origin, self.report)
        key = layer_key([repr(PYTHON).encode(), *(path.name.encode() for path in fetched)])

        def unpack(work: Path) -> None:
            write_tree(_files_of_packages(PYTHON, _read(fetched), {}), work)

        return Store(cache_root() / "image-python").get(key, unpack, self.report)


def merged(layers: Iterable[StoredLayer]) -> dict[str, File]:
    """The files of all layers together, as a container sees them."""
    return {path: file for layer in layers for path, file in files_of(layer).items()}


def _read(paths: Iterable[Path]) -> list[Package]:
    return [read_package(path.read_bytes()) for path in paths]


def _files_of_packages(layer: Packages, packages: Sequence[Package], lower: Tree) -> dict[str, File]:
    """The packages' files in the layer; the lowest layer also has the system files."""
    system = [] if lower else system_files(packages)
    selected = (file for package in packages for file in package.files if is_included(file, layer.left_out))
    return without_unused_libraries(tree((*selected, *system)), lower)


def _contents(files: Tree) -> list[bytes]:
    return [part for path, file in sorted(files.items()) for part in (f"{path}:{file.mode:o}".encode(), file.content)]
