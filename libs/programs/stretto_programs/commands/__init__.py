"""The commands that this distribution adds to `stretto`, by entry points of the group `stretto.commands`."""
