"""XLA's own auto-sharder, which later versions deleted, as a peer of `autoshard bench plans`."""
