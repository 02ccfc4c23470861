"""REST, event stream and read model."""
