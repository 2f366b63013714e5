"""``python -m deploy.release``: a release from built images. ``scripts/release.sh`` builds them and calls this."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from deploy.images.inputs.checkout import Checkout
from deploy.release.assemble import ArchiveError, assemble, check_output
from vm_image.host import BuildError


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the release. Returns 0, or 2 after an error."""
    parser = argparse.ArgumentParser(prog="python -m deploy.release", description="Makes a release of built images.")
    parser.add_argument("archives", nargs="*", type=Path, metavar="ARCHIVE", help="image archives")
    parser.add_argument("--output", type=Path, default=Path("build/release"), help="default: %(default)s")
    parser.add_argument("--repository", default="", metavar="URL", help="where the sources are, for the provenance")
    parser.add_argument("--registry", default="", metavar="PLACE", help="where the images will be: HOST[:PORT][/PATH]")
    parser.add_argument("--check", action="store_true", help="only say whether the output may be written")
    chosen = parser.parse_args(arguments)
    if chosen.check == bool(chosen.archives):  # exactly one of both
        parser.error("give either archives or --check")
    try:
        if chosen.check:
            check_output(chosen.output)
            return 0
        made = assemble(Checkout(), chosen.archives, chosen.output, chosen.repository, chosen.registry)
    except (ArchiveError, BuildError, OSError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 2
    for image in made.images:
        print(f"{image.file}  {image.name}@{image.digest}  {len(image.components)} packages")
    print(made.airgapped)
    return 0


if __name__ == "__main__":
    sys.exit(main())
