"""``python -m deploy.local.kubernetes.programs [MINOR [ADD-ON …]]``: builds what a cluster of that minor version needs.

The default is the newest version. It prints progress, and last the folder of each set as JSON. It is a process of its
own, so that the whole build ends with the process that asked for it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from deploy.local.kubernetes.programs.build import Builder, printed
from deploy.local.kubernetes.programs.images import image_set
from deploy.local.kubernetes.programs.toolchain import find_go
from deploy.local.kubernetes.programs.versions import SUPPORTED, module_sets
from vm_image.store import Report


def main(arguments: Sequence[str] | None = None) -> int:
    """Builds; returns the exit code."""
    minor, *add_ons = (sys.argv[1:] if arguments is None else arguments) or SUPPORTED[:1]

    def build(report: Report) -> str:
        builder = Builder.usual(find_go())
        folders = {modules.name: str(builder.ensure(modules, report)) for modules in module_sets(minor, add_ons)}
        # Images contain the programs, so they come last.
        return json.dumps({**folders, "images": str(image_set(builder, add_ons, report))})

    return printed(build)


if __name__ == "__main__":
    sys.exit(main())
