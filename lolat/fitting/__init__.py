"""Fitting formulas to measured points: least squares, predictors, intervals, the measured domain."""
