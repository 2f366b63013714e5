"""Sources of the page: the scheduler, the groups' program, agents, and the cluster for its history."""
