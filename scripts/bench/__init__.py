"""Speed and memory of the services, always beside a yardstick measured in the same run.

Rules that hold here:

- Absolute figures mean little on a machine that others share. Each figure stands beside that of a handler that decides
  nothing, taken in turns with it, and the ratio is what is quoted.
- Loads are bounded in count and go to loopback only.
"""
