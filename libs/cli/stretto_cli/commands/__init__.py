"""The commands, a module per group; each has ``register(app)``."""
