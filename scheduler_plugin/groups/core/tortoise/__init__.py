"""Tortoise: horizontal scaling by the time of day (S3).

An HPA scales the replicas. The policy sets the HPA's bounds and target utilization, and container sizes, from the need
at the same hour of earlier days. ``decide`` is the policy, ``floor`` its variant for single VMs (S3.7).
"""
