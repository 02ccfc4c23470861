"""Access to the gateway: tokens, roles, bounds on requests and connections, and the audit log of changes."""
