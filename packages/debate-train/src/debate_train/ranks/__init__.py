"""The processes of a run: started together, rank 0 leads and the others follow."""
