"""A live web page on a run, which reads only the run's folder."""
