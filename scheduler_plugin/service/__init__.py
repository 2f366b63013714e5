"""The single writer of the ledger: the verbs of kube-scheduler and the requests of agents."""
