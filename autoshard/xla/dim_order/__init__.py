"""In which order the dimensions of values lie in memory."""
