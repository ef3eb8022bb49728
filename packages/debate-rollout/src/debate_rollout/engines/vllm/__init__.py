"""vLLM in this process, or in one of its own beside it."""
