"""The messages and subjects of Stretto, once."""
