"""Tortoise: horizontal scaling by the time of day (S3).

An HPA scales; the policy sets its bounds and target utilisation, and container sizes, from the need in the same hour of
earlier days. ``decide`` is the policy, ``floor`` its variant for single VMs (S3.7).
"""
