"""Who may call: tokens, roles, bounds on requests and connections, and the audit log of changes."""
