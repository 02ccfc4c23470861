"""Readers of streams: in order, from any sequence, and with what is damaged among the messages."""
