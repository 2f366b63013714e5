"""``autoscale check``: whether an installation works, line by line, and what to do if it does not.

- ``CheckFacts`` has all that was seen of the cluster; a judge uses nothing else. The table of checks (``table.py``) is
  the only list of them, and docs/check.md is generated from it.
- What the user has no right to read, or what is not installed, is a skipped line with its reason, never an error.
"""
