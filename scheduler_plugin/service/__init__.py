"""The single writer of the ledger: the verbs of kube-scheduler and the requests of agents."""

from scheduler_plugin.service.service import Granted, RefusedError, Service

__all__ = ["Granted", "RefusedError", "Service"]
