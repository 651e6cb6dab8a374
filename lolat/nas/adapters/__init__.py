"""Latency for the tools that people search with: each adapter is a module of its own.

    optuna        latency as an objective and as a constraint of a study
    ray_tune      latency as a metric, trials over a budget stopped
    nni           NNI's Profiler, and the predictor that its nn-Meter profiler takes
    torch_mixture, keras_mixture
                  the expected latency of a mixture of choices, to be differentiated
    lookup_table  milliseconds of every choice, in a file

Importing this, or one of them, imports none of the tools; they are imported when they are used.
"""
