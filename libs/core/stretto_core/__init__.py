"""Every decision of Stretto, pure: no clock, socket or file."""
