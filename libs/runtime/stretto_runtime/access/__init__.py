"""Who may do what on the bus: keys, tokens, certificates, permissions, streams."""
