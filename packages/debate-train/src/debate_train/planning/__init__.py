"""`--plan`: memory of each rank, and bytes that an update moves."""
