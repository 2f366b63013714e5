"""The Kubernetes API over connections of our own: a call costs a tenth of what it costs over httpx2 (decision 35)."""

from scheduler_plugin.connections.direct_api import DirectApi
from scheduler_plugin.connections.pool import ConnectionPool

__all__ = ["ConnectionPool", "DirectApi"]
