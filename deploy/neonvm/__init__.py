"""The VM runtime: NeonVM's controllers, runner pods, guests, and their networks."""
