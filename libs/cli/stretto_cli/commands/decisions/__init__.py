"""Commands that ask for decisions offline, and simulate them."""
