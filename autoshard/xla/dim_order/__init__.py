"""The order of the dimensions of values in memory."""
