"""The parts of a process that are the same in every program and touch the machine: time, files, logs, credentials.

Rules that hold here:

- What decides stays in pure modules of ``protocol``; here it meets the clock and the disk.
- Nothing heavy is imported: the agent stands beside every VM.
"""
