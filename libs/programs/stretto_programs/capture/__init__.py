"""The first step of a program, captured while it runs, and explained."""
