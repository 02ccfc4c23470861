"""Rights on the bus: keys, tokens, certificates, permissions, streams."""
