"""A debate about one question, at inference."""
