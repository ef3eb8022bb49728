"""vLLM as a server: started by the run, or one that runs already."""
