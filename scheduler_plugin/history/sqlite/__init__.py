"""A history in one file of bounded size, for a single machine or one pod. A damaged file is set aside."""
