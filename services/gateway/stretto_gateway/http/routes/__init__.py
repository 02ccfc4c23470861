"""Routes of the REST interface, by subject."""
