"""Validated, windowed profiles of every job; stragglers and hot parameter servers."""
