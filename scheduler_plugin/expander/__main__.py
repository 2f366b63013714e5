"""``autoscale-expander``: the Cluster Autoscaler's gRPC expander as a program."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from protocol.runtime.clock import SystemClock
from protocol.runtime.credentials import CredentialsError
from protocol.runtime.followed_file import FileRefusedError
from protocol.runtime.json_log import log_as_json
from protocol.runtime.program import add_log_level, stop_on_signals
from scheduler_plugin.expander.app import serving

_EPILOG: Final = """\
Point the autoscaler at it with  --expander=grpc,least-waste --grpc-expander-url=HOST:10296
--grpc-expander-cert=CA.pem.  New prices in FILE apply without a restart; an invalid file
changes nothing. Stops on SIGTERM and SIGINT.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT, then return 0; return 2 if it cannot start."""
    parser = argparse.ArgumentParser(
        prog="autoscale-expander",
        description="Tells the Cluster Autoscaler which node group to grow: the cheapest one for the pending pods.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="YAML settings (default: none, all settings have defaults)"
    )
    add_log_level(parser)
    options = parser.parse_args(arguments)
    log_as_json(options.log_level)
    try:
        asyncio.run(_until_signalled(options.config))
    # gRPC raises RuntimeError if an address is taken.
    except (FileRefusedError, CredentialsError, OSError, RuntimeError) as error:
        print(f"autoscale-expander: cannot start: {error}", file=sys.stderr)
        return 2
    return 0


async def _until_signalled(config: Path | None) -> None:
    stop = stop_on_signals()
    async with serving(config, SystemClock(), os.environ):
        await stop.wait()


if __name__ == "__main__":
    raise SystemExit(main())
