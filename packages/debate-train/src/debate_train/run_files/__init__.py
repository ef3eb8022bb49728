"""The run directory: what is kept, by which process, and how a run is resumed."""
