"""The command line of ``autoscale-injector``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from protocol.runtime.program import add_kubeconfig, add_log_level

DESCRIPTION: Final = (
    "Puts the agent into the pods of VMs when they are made (a mutating webhook), and makes and renews the "
    "certificates of the scheduler, of itself and of what else is installed."
)


def parser() -> argparse.ArgumentParser:
    """All flags, with their defaults."""
    flags = argparse.ArgumentParser(prog="autoscale-injector", description=DESCRIPTION)
    flags.add_argument(
        "--settings", type=Path, required=True, metavar="FILE", help="settings; read again when the file changes"
    )
    flags.add_argument(
        "--tls-folder",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="where its own certificate is kept; with certificates.provider files, where it is mounted",
    )
    add_kubeconfig(flags)
    for name, port, what in (
        ("webhook", 10293, "the API server asks /mutate, with TLS"),
        ("metrics", 10292, "/metrics /healthz /readyz"),
    ):
        flags.add_argument(
            f"--listen-{name}",
            default=f"0.0.0.0:{port}",
            metavar="HOST:PORT",
            help=f"where {what} (default: %(default)s)",
        )
    add_log_level(flags)
    return flags
