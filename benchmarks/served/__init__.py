"""Published points of serving engines: the table, and the benchmark that bounds them."""
