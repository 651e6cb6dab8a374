"""How long training takes and what it costs."""
