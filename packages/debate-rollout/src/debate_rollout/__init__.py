"""Play debates: engines, token rendering and drivers."""

__version__ = "0.1.0"
