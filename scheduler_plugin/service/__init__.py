"""The single writer of the ledger: the verbs of kube-scheduler and the requests of agents."""

from scheduler_plugin.service.permits import CallerRefusedError, Granted
from scheduler_plugin.service.service import ActiveService, LeaderStatus, Service, StandingByError

__all__ = ["ActiveService", "CallerRefusedError", "Granted", "LeaderStatus", "Service", "StandingByError"]
