"""Nodes for elastic jobs over the steps ahead (ModelArts)."""
