"""From measured points to formulas: least squares, predictors, intervals, domain."""
