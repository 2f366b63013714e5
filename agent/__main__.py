"""``autoscaler-agent``: reads its settings and runs until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from prometheus_client import disable_created_metrics

from agent.app import run
from agent.settings import AgentSettings, read_settings
from protocol.runtime.clock import SystemClock
from protocol.runtime.followed_file import SettingsError
from protocol.runtime.json_log import log_as_json


def main() -> None:
    """The entry point. Exits with code 2 if the settings are invalid."""
    try:
        settings = read_settings(sys.argv[1:], os.environ)
    except SettingsError as error:
        # Plain text for a mistyped flag; the JSON log is not set up yet.
        sys.stderr.write(f"autoscaler-agent: {error}\n")
        sys.exit(2)
    log_as_json()
    # Otherwise each stage of the growth histogram exports one more series (``_created``).
    disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has no types here
    asyncio.run(_main(settings))


async def _main(settings: AgentSettings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await run(settings, SystemClock(), stop)


if __name__ == "__main__":
    main()
