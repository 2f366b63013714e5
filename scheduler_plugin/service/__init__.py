"""The single writer of the ledger: the verbs of kube-scheduler and the requests of agents."""

from scheduler_plugin.service.permits import Granted, RefusedError
from scheduler_plugin.service.service import Desk, Service, Standing, StandingByError

__all__ = ["Desk", "Granted", "RefusedError", "Service", "Standing", "StandingByError"]
