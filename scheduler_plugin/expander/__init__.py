"""The Cluster Autoscaler's gRPC expander, which picks the node group to grow by our prices (S2.8a).

Rules of this package:

- It never vetoes: on any error it returns all options, and logs why.
- ``scaleup``, ``failures`` and ``choice`` are pure; only ``wire`` uses protobuf, only ``service`` uses gRPC.
- It is a separate program that shares only ``protocol`` and ``program_telemetry`` with the scheduler.
"""
