"""The names of the images that are put on every node (pure)."""

from __future__ import annotations

from typing import Final

PAUSE_IMAGE: Final = "localhost/pause:1"
COREDNS_IMAGE: Final = "localhost/coredns:1"
METRICS_SERVER_IMAGE: Final = "localhost/metrics-server:1"
VPA_RECOMMENDER_IMAGE: Final = "localhost/vpa-recommender:1"
BUSYBOX_IMAGE: Final = "localhost/busybox:1"
"""A small image for trying things out: the machine's own busybox."""
