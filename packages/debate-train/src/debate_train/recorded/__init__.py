"""What a run keeps of its debates beside their texts."""
