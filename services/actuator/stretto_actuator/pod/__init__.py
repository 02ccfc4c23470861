"""Everything that one pod is given: its specification, credentials, secrets, volumes, devices; and its log."""
