"""From program, prices and requirements to a `Problem`, and back to `Decisions`."""
