"""What is made of evaluations that are finished: comparisons, and the theory beside them."""
