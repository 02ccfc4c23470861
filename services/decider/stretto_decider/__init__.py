"""Decides the sizes of objects that another controller runs."""
