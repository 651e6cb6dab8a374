"""Tables of times that other people measured."""
