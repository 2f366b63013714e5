"""The single writer of the ledger: kube-scheduler's verbs and agents' requests."""
