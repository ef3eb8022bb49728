"""Phases whose weights are kept only if what is measured on the dev split has not fallen."""
