"""DeepSpeed's ZeRO: what rank 0 asks for, and what every rank holds."""
