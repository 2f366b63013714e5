"""``neonvm-runner``: runs the guest of one VirtualMachine in its pod. Run with ``--help``."""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from deploy.neonvm.runner.pod_runner import Ending
from deploy.neonvm.runner.program import end, lived
from deploy.neonvm.runner.runner_arguments import parse_arguments
from protocol.runtime.json_log import log_as_json
from protocol.vm_arguments import ArgumentsError


def main() -> int:
    """Runs until the guest has ended; the exit code is 0 if that was ordered, or if the guest has moved."""
    log_as_json()
    logging.getLogger("qemu").setLevel(logging.CRITICAL)  # this program's own messages about QEMU say more
    try:
        options = parse_arguments(sys.argv[1:], os.environ)
    except ArgumentsError as error:
        return end(Ending(2, str(error)))
    return end(asyncio.run(lived(options)))


if __name__ == "__main__":
    sys.exit(main())
