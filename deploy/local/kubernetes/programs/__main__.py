"""``python -m deploy.local.kubernetes.programs [MINOR [ADD-ON …]]``: builds the programs and images of a cluster.

MINOR defaults to the newest version. It prints progress and then the folder of each module set as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from deploy.local.kubernetes.programs.build import Builder, print_build
from deploy.local.kubernetes.programs.images import image_set
from deploy.local.kubernetes.programs.toolchain import find_go
from deploy.local.kubernetes.programs.versions import SUPPORTED, module_sets
from vm_image.store import Report


def main(arguments: Sequence[str] | None = None) -> int:
    """Build; return the exit code."""
    minor, *add_ons = (sys.argv[1:] if arguments is None else arguments) or SUPPORTED[:1]

    def build(report: Report) -> str:
        builder = Builder.default(find_go())
        folders = {modules.name: str(builder.ensure(modules, report)) for modules in module_sets(minor, add_ons)}
        # Last: images contain the programs.
        return json.dumps({**folders, "images": str(image_set(builder, add_ons, report))})

    return print_build(build)


if __name__ == "__main__":
    sys.exit(main())
