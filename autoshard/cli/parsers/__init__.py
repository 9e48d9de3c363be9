"""The words of each command."""
