"""Problems near a problem: what limits, pins and scales change."""
