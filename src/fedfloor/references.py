"""What methods are compared with that are no federation: names that runs and reports share."""

LOCAL_ONLY = "local-only"
POOLED = "pooled"
SCIKIT_LEARN = "scikit-learn"
PERSISTENCE = "persistence"
SEASONAL = "seasonal"
REFERENCES = (LOCAL_ONLY, POOLED, SCIKIT_LEARN, PERSISTENCE, SEASONAL)
FOLDER = "references"  # in a run's folder: the references that were made beside it
