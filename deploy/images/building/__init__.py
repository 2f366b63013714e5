"""Builds layers and images from the inputs."""
