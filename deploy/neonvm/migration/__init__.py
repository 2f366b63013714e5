"""The controller of VirtualMachineMigrations: a running VM moves from one pod into another (S4.12)."""
