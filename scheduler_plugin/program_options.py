"""Flags that all programs have."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from protocol import VERSION


def add_kubeconfig(found: argparse.ArgumentParser) -> None:
    """Add the options to reach the Kubernetes API."""
    found.add_argument(
        "--kubeconfig",
        type=Path,
        # kubectl's variable, but here it names a single file, not a list.
        default=os.environ.get("KUBECONFIG"),
        metavar="FILE",
        help="how to reach the Kubernetes API (default: $KUBECONFIG, else the pod's service account)",
    )


def add_explain_token(found: argparse.ArgumentParser) -> None:
    """Add the options for who may read explanations, and for the token shown to peers."""
    found.add_argument(
        "--explain-token",
        type=Path,
        metavar="FILE",
        help="a token that alone opens explanations here and is shown elsewhere (default: tokens of the cluster's)",
    )


def add_log_level(found: argparse.ArgumentParser) -> None:
    """Add the log level and ``--version``."""
    found.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")
    found.add_argument(
        "--log-level",
        default="info",
        choices=["debug", "info", "warning", "error"],
        help="least level to log to stderr (default: %(default)s)",
    )
