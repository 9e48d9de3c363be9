"""The kinds of files that commands write: as text, and as pages."""
