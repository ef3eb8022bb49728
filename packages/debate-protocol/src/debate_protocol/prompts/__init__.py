"""How a debate is put into chat messages: for strong models in full, for tiny ones compactly."""
