"""The scheduler's listeners and routes: the extender verbs, the agents' permits, probes and explanations."""
