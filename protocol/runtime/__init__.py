"""The parts of a process that are the same in every program and touch the machine: time, files, logs, credentials.

- Decisions stay in the pure modules of ``protocol``; these modules add the clock, the disk and the network.
- Nothing heavy is imported, except in ``serving`` and ``certificates``: the agent runs beside every VM.
"""
