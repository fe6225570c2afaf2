"""Tasks of models: losses, answers and metrics. Other packages do not depend on the kind of a task."""
