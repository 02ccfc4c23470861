"""The commands `stretto run` and `stretto explain-graph`, found by entry points of the group `stretto.commands`."""
