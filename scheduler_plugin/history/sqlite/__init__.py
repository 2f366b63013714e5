"""A history in one file, for one machine or one small Deployment: bounded, and repaired by beginning again."""
