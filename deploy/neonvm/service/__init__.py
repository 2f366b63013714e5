"""``neonvm-controller``: the program that runs VirtualMachines on a real cluster."""
