"""Makes pods match the decided plan."""
