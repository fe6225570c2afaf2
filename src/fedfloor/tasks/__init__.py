"""Tasks: what a model is asked for, and how good its outputs are. Known here and nowhere else."""
