"""The REST interface: routes, the documents that describe them, pages, and event streams."""
