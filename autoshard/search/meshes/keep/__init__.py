"""What each stage of a pipeline saves for its backward pass, decided with its schedule."""
