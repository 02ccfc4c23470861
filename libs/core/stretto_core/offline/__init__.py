"""Decisions of the papers that no service runs yet; stretto whatif and stretto simulate do."""
