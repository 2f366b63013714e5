"""``autoscale images``: container images without a container engine."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from deploy.images.building.image_build import BuiltImage, archive_name, build, check, native_platform
from deploy.images.building.layers import LayerMaker, merged, write_tree
from deploy.images.catalogue import IMAGES, Image
from deploy.images.inputs.apt import drop_packages
from deploy.images.inputs.checkout import Checkout
from deploy.images.push import PushError, PushTarget, push
from deploy.images.rules.lock import LockError
from deploy.images.rules.platforms import PLATFORMS, Platform
from scripts.autoscale.running import INTERRUPTED
from scripts.autoscale.terminal.plain_command import PlainCommand
from scripts.autoscale.terminal.printing import Output, OutputFormat, show
from vm_image.host import BuildError
from vm_image.recipe import Origin
from vm_image.store import Report

DEFAULT_FOLDER: Final = Path("build/images")
DEFAULT_REGISTRY: Final = "localhost:5001"


def _check_images(names: list[str] | None) -> list[str]:
    if unknown := [name for name in names or () if name not in IMAGES]:
        raise typer.BadParameter(f"unknown image {', '.join(unknown)}; available: {', '.join(IMAGES)}")
    return names or []


def _check_platforms(names: list[str] | None) -> list[str]:
    if unknown := [name for name in names or () if name not in PLATFORMS]:
        raise typer.BadParameter(f"unknown platform {', '.join(unknown)}; available: {', '.join(PLATFORMS)}")
    return names or []


def _check_snapshot(snapshot: str) -> str:
    try:
        return Origin(snapshot).snapshot
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


Names = Annotated[
    list[str] | None, typer.Argument(metavar="IMAGE", callback=_check_images, help="Images (default: all).")
]
OnPlatforms = Annotated[
    list[str] | None,
    typer.Option(
        "--platform",
        callback=_check_platforms,
        help="linux/amd64 or linux/arm64, repeatable (default: this machine's).",
    ),
]
Tag = Annotated[str, typer.Option(help="Tag of the images.")]
Folder = Annotated[Path, typer.Option("--output", help="Folder of the archives.")]
Snapshot = Annotated[
    str,
    typer.Option(
        callback=_check_snapshot,
        metavar="TIME",
        show_default="the newest",
        help="Use Debian packages as of this time, such as 20260102T030405Z.",
    ),
]


def images_app() -> typer.Typer:
    """The commands of ``autoscale images``."""
    app = typer.Typer(help="Build container images without a container engine, and push them.", no_args_is_help=True)
    app.command("list", cls=PlainCommand)(list_images)
    app.command("build", cls=PlainCommand)(build_images)
    app.command("push", cls=PlainCommand)(push_images)
    app.command("unpack", cls=PlainCommand)(unpack)
    return app


def list_images(output: OutputFormat = Output.TEXT) -> None:
    """List the images; with -o wide also the layers of each."""
    fields = [
        {
            "name": image.name,
            "title": image.title,
            "ports": [*image.ports],
            "layers": [layer.name for layer in image.layers],
        }
        for image in IMAGES.values()
    ]
    show(_table(fields, output), fields, output)


def _table(fields: Sequence[Mapping[str, object]], output: Output) -> Iterator[str]:
    columns = ("name", "ports", "title", "layers") if output is Output.WIDE else ("name", "ports", "title")
    rows = [columns, *([_cell(row_fields[column]) for column in columns] for row_fields in fields)]
    # The heading is a row, so that it counts towards the widths.
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _cell(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def build_images(  # noqa: PLR0913, PLR0917 - the options of a command
    names: Names = None,
    platform: OnPlatforms = None,
    output: Folder = DEFAULT_FOLDER,
    registry: Annotated[str, typer.Option(help="Registry prefix of image references.")] = DEFAULT_REGISTRY,
    tag: Tag = "dev",
    snapshot: Snapshot = "",
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Fetch the newest packages first.")] = False,
) -> None:
    """Build images as archives for `ctr image import`, `docker load` and `autoscale images push`."""
    built: list[BuiltImage] = []
    with _reporting() as report:
        wanted = _platforms_by_image(names, _chosen(platform), report)
        for where in _chosen(platform):
            # Layers depend on the platform, so each platform has its own maker.
            maker = _maker(where, snapshot, report)
            images = [image for image, platforms in wanted.items() if where in platforms]
            # The build fetches dropped packages again.
            if rebuild:
                drop_packages(images, where, maker.origin, report)
            built += [build(image, maker, f"{registry}/{image.name}:{tag}", output) for image in images]
    for image in built:
        typer.echo(f"{image.path}  {image.platform.name}  {image.size / 1e6:.1f} MB  {image.digest}")


def push_images(  # noqa: PLR0913, PLR0917 - the options of a command
    registry: Annotated[str, typer.Argument(metavar="REGISTRY", help="HOST, HOST:PORT or HOST:PORT/PATH.")],
    names: Names = None,
    platform: OnPlatforms = None,
    folder: Folder = DEFAULT_FOLDER,
    tag: Tag = "dev",
    plain_http: Annotated[bool, typer.Option(help="Use HTTP, for registries on this machine.")] = False,
) -> None:
    """Push built images to a registry; several platforms share one name. Credentials come from docker's config.json."""
    with _reporting() as report:
        for image, platforms in _platforms_by_image(names, _chosen(platform), report).items():
            archives = {where.debian: folder / archive_name(image.name, where) for where in platforms}
            # Check all before pushing any: an incomplete index would replace a complete one.
            if missing := [str(path) for path in archives.values() if not path.is_file()]:
                raise BuildError(f"{', '.join(missing)} not found; build it: autoscale images build {image.name}")
            target = PushTarget(registry, image.name, tag, plain_http)
            print(f"{target.reference}@{push(archives, target, report)}")


def unpack(
    name: Annotated[str, typer.Argument(metavar="IMAGE", help="The image.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="An empty or new folder.")],
    platform: Annotated[str, typer.Option(help="linux/amd64 or linux/arm64 (default: this machine's).")] = "",
    snapshot: Snapshot = "",
) -> None:
    """Write the files of an image into a folder; for deploy/images/Dockerfile."""
    (image,) = (IMAGES[image_name] for image_name in _check_images([name]))
    (where,) = _chosen(_check_platforms([platform] if platform else None))
    with _reporting() as report:
        # Leftover files would become part of the image.
        if folder.is_dir() and any(folder.iterdir()):
            raise BuildError(f"{folder} is not empty")
        files = merged(_maker(where, snapshot, report).layers_of(image))
        # Checked before it is written, so that a rejected image leaves no files behind.
        check(image, where, files)
        write_tree(files, folder)


def _platforms_by_image(
    names: Sequence[str] | None, platforms: Sequence[Platform], report: Report
) -> dict[Image, Sequence[Platform]]:
    """Maps each requested image to the ``platforms`` that it is built for; reports what it skips.

    Raises ``BuildError`` if an image that is requested by name is built for none of them.
    """
    images = [IMAGES[name] for name in names or IMAGES]
    wanted = {image: [platform for platform in platforms if image.is_built_for(platform.name)] for image in images}
    for image, built_for in wanted.items():
        without = ", ".join(platform.name for platform in platforms if platform not in built_for)
        # Without names all images are requested, and not all are built for every platform.
        if names and not built_for:
            raise BuildError(f"{image.name} is not built for {without}")
        if without:
            report(f"{image.name}: skipped for {without}, which it is not built for")
    return {image: built_for for image, built_for in wanted.items() if built_for}


def _chosen(names: Sequence[str] | None) -> list[Platform]:
    return [PLATFORMS[name] for name in names] if names else [native_platform()]


def _maker(platform: Platform, snapshot: str, report: Report) -> LayerMaker:
    return LayerMaker(Checkout(), platform, native_platform(), Origin(snapshot), report)


@contextmanager
def _reporting() -> Iterator[Report]:
    """Yields a function that prints progress; exits with a message if a build or a push fails."""
    started = time.monotonic()
    # SIGTERM must clean up like Ctrl-C: a build has temporary folders and child processes.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)

    def report(line: str) -> None:
        # Progress goes to stderr: stdout is for the result.
        typer.echo(f"{time.monotonic() - started:6.1f} s  {line}", err=True)

    try:
        yield report
    except (BuildError, LockError, PushError) as error:
        typer.echo(f"autoscale: {error}", err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        typer.echo("autoscale: interrupted; finished images are kept", err=True)
        raise typer.Exit(INTERRUPTED) from error
    finally:
        signal.signal(signal.SIGTERM, before)
