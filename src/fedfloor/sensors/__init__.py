"""A machine's sensors: sources that report values, and the ring buffer on disk that stores them as rows."""
