"""Programs of somebody who has PyTorch, and their job files; nothing imports them."""
