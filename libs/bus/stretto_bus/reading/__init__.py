"""Readers of streams: in order, from any sequence, what is damaged among the messages, and what the servers do."""
