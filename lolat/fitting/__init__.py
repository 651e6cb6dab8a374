"""Fits formulas to measured points: least squares, predictors, intervals, measured domain."""
