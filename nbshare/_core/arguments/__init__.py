"""The arguments of a call, checked. What follows may rely on them."""
