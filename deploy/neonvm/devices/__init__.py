"""``neonvm-devices``: gives runner pods the devices of their node that make guests fast; one program on each node."""
