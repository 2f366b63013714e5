"""Makes layers and images of the inputs."""
