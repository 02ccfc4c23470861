"""Answers of the gateway as typed values, which explain and show themselves."""
