"""Rollouts that other programs wrote: one small reader for each format."""
