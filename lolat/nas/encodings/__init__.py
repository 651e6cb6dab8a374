"""Networks of known search spaces as rows of small integers: one module per space, the same verbs in each.

Each module has `NAME`, `POSITIONS` (what is chosen, in the order of the columns), `CHOICES` (the
operations, in the order of their integers; the same at every position), `parse` (one network),
`parse_many` (many, fast) and `write` (integers back into text).
"""
