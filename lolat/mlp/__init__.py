"""The layer model of Justus et al. 2018, a deep network per kind of layer: as published, and improved."""
