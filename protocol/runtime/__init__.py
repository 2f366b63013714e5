"""Shared parts of all processes that interact with the machine: time, files, logs, credentials.

- Decisions belong in the pure modules of ``protocol``; these modules add the clock, the disk and the network.
- Imports are light, except in ``serving`` and ``certificates``, because an agent runs next to every VM.
"""
