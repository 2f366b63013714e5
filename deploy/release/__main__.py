"""``python -m deploy.release``: builds a release from image archives. Called by ``scripts/release.sh``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from deploy.images.inputs.checkout import Checkout
from deploy.release.assemble import ArchiveError, assemble, check_output
from vm_image.host import BuildError


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the release. Returns 0, or 2 after an error."""
    parser = argparse.ArgumentParser(prog="python -m deploy.release", description="Builds a release from images.")
    parser.add_argument("archives", nargs="*", type=Path, metavar="ARCHIVE", help="image archives")
    parser.add_argument("--output", type=Path, default=Path("build/release"), help="default: %(default)s")
    parser.add_argument("--repository", default="", metavar="URL", help="URL of the sources, for the provenance")
    parser.add_argument("--registry", default="", metavar="REGISTRY", help="registry of the images: HOST[:PORT][/PATH]")
    parser.add_argument("--check", action="store_true", help="only check that the output folder can be replaced")
    options = parser.parse_args(arguments)
    if options.check == bool(options.archives):  # exactly one of them
        parser.error("expected either archives or --check")
    try:
        if options.check:
            check_output(options.output)
            return 0
        release = assemble(Checkout(), options.archives, options.output, options.repository, options.registry)
    except (ArchiveError, BuildError, OSError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 2
    for image in release.images:
        print(f"{image.file}  {image.name}@{image.digest}  {len(image.components)} packages")
    print(release.airgapped)
    return 0


if __name__ == "__main__":
    sys.exit(main())
