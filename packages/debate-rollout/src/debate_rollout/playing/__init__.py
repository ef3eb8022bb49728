"""Debates under way: their asks become requests, replies come back, limits of time hold."""
