"""The command line arguments of each command."""
