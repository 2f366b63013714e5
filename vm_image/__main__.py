"""``vm_image/build.sh``: builds the guest image and prints its folder."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterable

from vm_image.build import ensure_image, rebuild
from vm_image.host import BuildError
from vm_image.recipe import NEWEST, Origin

_DESCRIPTION = """Builds the guest image: a kernel, an initrd and a root disk with postgres 15 and node_exporter.

The result is cached in ${AUTOSCALE_CACHE:-~/.cache/autoscale}/images until one of its inputs changes.
Requires mmdebstrap, qemu-utils and qemu-system-x86; as root, missing packages are installed.
`autoscale images build postgres-vm` packs it as a container image for NeonVM."""


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help in the style of the project's shell scripts."""

    def add_usage(
        self,
        usage: str | None,
        actions: Iterable[argparse.Action],
        groups: Iterable[argparse._MutuallyExclusiveGroup],
        prefix: str | None = None,
    ) -> None:
        super().add_usage(usage, actions, groups, prefix or "Usage: ")


def _origin(snapshot: str) -> Origin:
    try:
        return Origin(snapshot)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def main() -> int:
    """Run the build; return the exit code."""
    parser = argparse.ArgumentParser(prog="vm_image/build.sh", description=_DESCRIPTION, formatter_class=_Help)
    parser.add_argument("--rebuild", action="store_true", help="rebuild with the newest packages")
    snapshot = "use Debian's packages as of TIME, such as 20260102T030405Z"
    parser.add_argument("--snapshot", type=_origin, metavar="TIME", default=NEWEST, help=snapshot)
    options = parser.parse_args()
    # SIGTERM unwinds the stack like Ctrl-C, so that work folders are removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    started = time.monotonic()

    def report(line: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {line}", file=sys.stderr, flush=True)

    try:
        image = (rebuild if options.rebuild else ensure_image)(report, options.snapshot)
    except BuildError as error:
        print(f"vm_image/build.sh: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("vm_image/build.sh: interrupted; incomplete results have been removed", file=sys.stderr)
        return 130
    # The only line on standard output, for scripts; progress goes to standard error.
    print(image.disk.parent)
    return 0


if __name__ == "__main__":
    sys.exit(main())
