"""Fuzzing by coverage: bytes that lead to new places of our readers are kept and changed again."""
