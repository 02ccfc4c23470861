"""Commands that show what jobs do, why, and with which result."""
