"""What makes a pure machine a service: bus, state, ownership, telemetry, health."""
