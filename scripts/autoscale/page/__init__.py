"""The live page of a cluster on this machine, by itself and beside another command."""
