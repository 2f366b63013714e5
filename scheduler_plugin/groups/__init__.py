"""Groups: how many replicas a workload has and how large each is, decided together (S1, S3).

A program of its own, ``autoscale-groups``: the scheduler never imports it, and it holds no reservation.
"""
