"""Predictors side by side on the same measured points: how well each does on what it has not seen."""
