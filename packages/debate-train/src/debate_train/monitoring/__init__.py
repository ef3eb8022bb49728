"""What is watched and shown while a policy trains."""

from debate_train.monitoring.detectors import Detector, Finding, History
from debate_train.monitoring.health import DETECTORS, DetectorChoice, Health

__all__ = ["DETECTORS", "Detector", "DetectorChoice", "Finding", "Health", "History"]
