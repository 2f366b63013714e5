"""The command line of ``autoscale-groups``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from protocol.runtime.program import add_explain_token, add_kubeconfig, add_log_level

DESCRIPTION: Final = (
    "Decides how many replicas a workload has and how large each is (Hvpa, Tortoise), and makes the VMs of a "
    "VirtualMachineGroup."
)


def parser() -> argparse.ArgumentParser:
    """All flags, with their defaults."""
    arguments = argparse.ArgumentParser(prog="autoscale-groups", description=DESCRIPTION)
    arguments.add_argument(
        "--settings",
        type=Path,
        metavar="FILE",
        help="settings; read again when the file changes (default: none, everything has a default)",
    )
    add_kubeconfig(arguments)
    add_explain_token(arguments)
    arguments.add_argument(
        "--listen",
        default="0.0.0.0:10294",
        metavar="HOST:PORT",
        help="where /metrics /healthz /readyz are, and for tokens /explain/NAMESPACE/KIND/NAME (default: %(default)s)",
    )
    agents_help = "where the agents of a group's VMs answer, at their pods (default: %(default)s)"
    arguments.add_argument("--agents-port", type=int, default=9101, metavar="PORT", help=agents_help)
    add_log_level(arguments)
    return arguments
