"""The ways in which a client may describe a change: JSON patch, merge patch, strategic merge patch, and apply. Pure."""
