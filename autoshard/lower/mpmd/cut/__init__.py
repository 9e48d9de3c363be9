"""A step cut into fragments: one per stage and kind of work."""
