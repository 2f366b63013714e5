"""Measures the speed and memory of the services beside a baseline in the same run.

- On a shared machine only ratios are comparable, so rounds of a service alternate with rounds of a handler that
  decides nothing, and the ratio is quoted.
- Loads are bounded in count and go to loopback only.
"""
