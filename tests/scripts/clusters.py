"""Clusters for tests of what is built upon them."""

from __future__ import annotations

from pathlib import Path

from deploy.local.cluster.folder import ClusterFolder
from protocol.kubernetes.kubeconfig import Login
from scripts.autoscale.clusters import ReachedCluster


def cluster_at(path: Path = Path("none"), folder: ClusterFolder | None = None) -> ReachedCluster:
    """A cluster whose kubeconfig at ``path`` is never read."""
    return ReachedCluster((path,), "", Login("http://api"), f"cluster of {path}", folder)
