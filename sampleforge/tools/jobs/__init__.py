"""Jobs: runs as processes of their own, here or by Slurm."""
