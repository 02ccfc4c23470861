"""The step of a program in two parts that run: one prepares raw elements, the other trains with them."""
