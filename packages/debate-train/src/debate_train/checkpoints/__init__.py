"""Checkpoints: complete or absent, sealed by a manifest with the hash of every file."""

from debate_train.checkpoints.manifest import MANIFEST as MANIFEST
from debate_train.checkpoints.manifest import RefusedCheckpoint as RefusedCheckpoint
from debate_train.checkpoints.manifest import file_hashes as file_hashes
from debate_train.checkpoints.manifest import run_hash as run_hash
from debate_train.checkpoints.manifest import seal as seal
from debate_train.checkpoints.manifest import verify as verify
from debate_train.checkpoints.numbered import Checkpoint as Checkpoint
from debate_train.checkpoints.numbered import Checkpoints as Checkpoints
from debate_train.checkpoints.run_state import Best as Best
from debate_train.checkpoints.run_state import Checkpointing as Checkpointing
from debate_train.checkpoints.run_state import KeepBest as KeepBest
from debate_train.checkpoints.run_state import RunState as RunState
