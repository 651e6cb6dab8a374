"""Language models: a decoder from its published configuration, as layers, parameters and bytes."""
