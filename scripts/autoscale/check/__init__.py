"""``autoscale check``: checks an installation line by line, with a remedy for each problem.

- ``CheckFacts`` contains all observations of the cluster; judges use nothing else. docs/check.md is generated from the
  table of checks (``table.py``).
- Without permission to read something, or if it is not installed, the line is skipped with the reason; it is no error.
"""
