"""What operations share: the calculus of products and solves, and the calls of the kernels."""
