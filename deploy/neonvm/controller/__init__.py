"""The VirtualMachine controller: runs each VM in a runner pod and resizes it to its ``use`` (S4.2)."""
