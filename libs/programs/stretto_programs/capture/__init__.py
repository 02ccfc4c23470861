"""The first step of a program: captured while the program runs, and explained."""
