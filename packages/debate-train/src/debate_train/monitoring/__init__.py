"""What is watched and shown while a policy trains."""

from debate_train.monitoring.detectors import Detector, Finding
from debate_train.monitoring.health import DETECTORS, DetectorChoice, Health
from debate_train.monitoring.history import History

__all__ = ["DETECTORS", "Detector", "DetectorChoice", "Finding", "Health", "History"]
