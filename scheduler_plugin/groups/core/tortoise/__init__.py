"""Tortoise: horizontal scaling with a memory of the day (S3).

An HPA scales; this decides between which numbers of replicas, towards which utilisation, and how large each container
is, from what the same hour needed before. ``decide`` is the policy, ``floor`` its form for single VMs (S3.7).
"""
