"""What ships and what a recipe may say, shown without running one."""
