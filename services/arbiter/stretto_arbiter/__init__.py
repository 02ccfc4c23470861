"""One cluster-wide choice of plans, with its reasons."""
