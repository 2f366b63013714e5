"""The Cluster Autoscaler's gRPC expander, which picks the node group to grow by our own prices (S2.8a).

Rules that hold in this package:

- It never vetoes: whatever goes wrong here, every option that was offered is passed on, and the log says why.
- ``scaleup``, ``failures`` and ``choice`` are pure; ``wire`` alone knows protobuf, ``service`` alone knows gRPC.
- It is a program of its own and shares nothing with the scheduler but ``protocol`` and ``program_telemetry``.
"""
