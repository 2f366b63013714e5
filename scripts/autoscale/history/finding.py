"""Where the history of a cluster is kept on this machine."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Final

from deploy.local.cluster.folder import ClusterFolder, clusters_root
from scripts.autoscale.clusters import usual_kubeconfig

FILE: Final = "history.sqlite"


def history_path(name: str, kubeconfig: str, context: str = "") -> Path:
    """The file of a local cluster in its folder, so that it goes with it; of any other one in a folder for all.

    The cluster is chosen as ``open_site`` chooses it.
    """
    folder = ClusterFolder.of(name)
    chosen = Path(kubeconfig) if kubeconfig else usual_kubeconfig()
    if (not kubeconfig and not context and folder.exists()) or chosen is None:
        return folder.root / FILE
    which = sha256(f"{chosen.resolve()}\0{context}".encode()).hexdigest()[:16]
    return clusters_root().parent / "autoscale-histories" / which / FILE
