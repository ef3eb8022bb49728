"""An actor and a critic in turn, and what is sampled beside them (ACC-Debate)."""
