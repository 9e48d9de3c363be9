"""What a plan takes in the order in which its compiler runs it."""
