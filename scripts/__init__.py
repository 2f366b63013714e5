"""Commands that people run, and the measurements behind what the project says of itself."""
