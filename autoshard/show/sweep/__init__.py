"""Pages and pictures of sweeps and of serving."""
