"""Tasks of models, and the quality of their outputs; other packages do not depend on a task's kind."""
