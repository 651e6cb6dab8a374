"""The library's face: Model, and what joins several rooms: learn, fit, measure, compare."""
