"""Drills on a real installation: the demonstration (``stretto demo``) and the fire drill (``stretto chaos``)."""
