"""Questions about many plans."""
