"""Drawings as text: static SVG and HTML without scripts, for notebooks and for reports."""
