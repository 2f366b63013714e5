"""A real cluster's resources on this machine: control groups, credentials, nodes, and checks of the machine."""
