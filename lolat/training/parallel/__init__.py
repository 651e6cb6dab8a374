"""Data parallelism: every device has the whole network and its own part of the batch.

    iteration = the slowest replica + synchronisation + the exchange that the backward pass does not hide

links: what joins the devices. machines: what joins those of one machine, by their name. collectives: one
exchange (ring, tree, one to all) in ms. gradients: when the backward pass has which of them. buckets: what
of the exchange it hides. replicas: an iteration out of all these. scaling: curves over device counts.
prediction: a training model's prediction carried over to several devices.
runs: the formula fitted to epochs that somebody timed. layers: an iteration from layers timed alone, the
MirroredStrategy study's way and another.
"""
