"""What is drawn, printed and clicked, in kernels and in a browser."""
