"""The scheduler's HTTP listeners and routes: extender verbs, agents' permits, probes and explanations."""
