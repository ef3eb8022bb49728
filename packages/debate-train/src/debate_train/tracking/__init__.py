"""Where a run is followed besides its directory: W&B, TensorBoard, trackio."""
