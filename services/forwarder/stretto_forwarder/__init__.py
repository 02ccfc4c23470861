"""Posts events to webhooks."""
