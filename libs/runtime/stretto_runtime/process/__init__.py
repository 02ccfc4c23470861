"""One process: its identity, health, telemetry and errors."""
