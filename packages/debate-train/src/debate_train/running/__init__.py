"""A run: its phases, its loop, its engine, and how it is stopped and saved."""
