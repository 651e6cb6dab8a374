"""The companion: the deep layer model of Justus et al. 2018, as published and improved."""
