"""The command line of ``autoscale-groups``."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Final

DESCRIPTION: Final = (
    "Decides how many replicas a workload has and how large each is (Hvpa, Tortoise), and makes the VMs of a "
    "VirtualMachineGroup."
)


def parser() -> argparse.ArgumentParser:
    """All flags, with their defaults."""
    found = argparse.ArgumentParser(prog="autoscale-groups", description=DESCRIPTION)
    for flag, default, what in (
        ("--settings", None, "settings; read again when the file changes (default: none, everything has a default)"),
        (
            "--kubeconfig",
            os.environ.get("KUBECONFIG"),
            "how to reach the Kubernetes API (default: $KUBECONFIG, else the pod's service account)",
        ),
    ):
        found.add_argument(flag, type=Path, default=default, metavar="FILE", help=what)
    found.add_argument(
        "--listen",
        default="0.0.0.0:10294",
        metavar="HOST:PORT",
        help="where /metrics /healthz /readyz /explain/NAMESPACE/KIND/NAME are (default: %(default)s)",
    )
    where = "where the agents of a group's VMs answer, at their pods (default: %(default)s)"
    found.add_argument("--agents-port", type=int, default=9101, metavar="PORT", help=where)
    levels = ["debug", "info", "warning", "error"]
    least = "least level to log to stderr (default: %(default)s)"
    found.add_argument("--log-level", default="info", choices=levels, help=least)
    return found
