"""Rollouts that other programs have written, as transcripts of single replies."""

from debate_train.rollout_files.importing import import_rollouts

__all__ = ["import_rollouts"]
