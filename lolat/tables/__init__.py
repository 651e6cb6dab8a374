"""Tables of times that others measured."""
