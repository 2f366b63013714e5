"""Groups: replica counts and sizes of workloads, decided together (S1, S3).

A separate program, ``autoscale-groups``: the scheduler never imports it, and it holds no reservations.
"""
