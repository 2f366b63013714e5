"""The chart on a fresh real Kubernetes, installed, upgraded and taken out as people do it."""
