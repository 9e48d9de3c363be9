"""Which forward values a plan saves for the backward pass: choices to try, and their search."""
