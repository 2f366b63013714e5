"""Replays recordings as the load of a group, with policies that choose the number and size of replicas."""
