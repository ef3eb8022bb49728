"""What debates are measured by."""
