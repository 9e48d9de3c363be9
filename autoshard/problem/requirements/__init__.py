"""What a user asks for: read, bound to a program, kept by a problem, checked."""
