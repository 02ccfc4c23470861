"""The contract of the bus: subjects, messages, their CloudEvents headers and schemas."""
