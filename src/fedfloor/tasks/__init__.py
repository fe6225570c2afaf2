"""Tasks of models, and the quality of their outputs: known here and nowhere else."""
