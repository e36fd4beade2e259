"""What goes wrong: deaths, hangs, interrupts, limits."""
