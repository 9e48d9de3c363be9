"""Pages and pictures of pipelines."""
