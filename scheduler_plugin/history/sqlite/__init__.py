"""A history in one file of bounded size, for a single machine or a small Deployment. A damaged file is set aside."""
