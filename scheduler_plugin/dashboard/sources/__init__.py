"""What the page asks: the scheduler, the groups' program, agents, and the cluster for its history."""
