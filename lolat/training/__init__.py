"""Training: iterations, epochs, several devices, cost."""
