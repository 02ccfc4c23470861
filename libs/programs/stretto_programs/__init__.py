"""Data workers for training programs that know nothing of Stretto, and what they could prepare."""
