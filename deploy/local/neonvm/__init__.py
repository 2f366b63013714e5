"""NeonVM's controller for one machine: VirtualMachine objects become runner pods and follow their ``use`` (S4.2)."""
