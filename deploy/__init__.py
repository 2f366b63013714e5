"""Deployments: manifests and images for clusters, NeonVM's controllers and runners, and local clusters."""
