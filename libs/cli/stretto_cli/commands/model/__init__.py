"""Commands for a model and its job file: begin, try, describe, take home."""
