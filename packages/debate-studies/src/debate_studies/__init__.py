"""Studies of recipes over seeds, and SDRL's model of beliefs beside the theory."""

__version__ = "0.1.0"
