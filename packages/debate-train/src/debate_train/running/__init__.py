"""A run: phases, loop and engine, stopping and saving."""
