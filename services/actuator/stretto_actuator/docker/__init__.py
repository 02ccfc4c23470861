"""Pods as containers of one Docker engine."""
