"""One rank's step on a fake cluster: no memory, no peers, every operator and every collective."""
