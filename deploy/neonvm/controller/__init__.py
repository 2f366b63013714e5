"""The controller of VirtualMachines: they become runner pods and follow their ``use`` (S4.2)."""
