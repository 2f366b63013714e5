"""A gRPC expander for the Cluster Autoscaler, which chooses the node group to grow by our prices (S2.8a).

Rules of this package:

- It never vetoes a scale-up: on any error it returns all options, and logs why.
- ``scaleup``, ``failures`` and ``choice`` are pure; only ``wire`` uses protobuf, only ``service`` uses gRPC.
- It is a separate program that shares only ``protocol`` and ``program_telemetry`` with the scheduler.
"""
