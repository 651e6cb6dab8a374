"""What a training run costs: prices, billing, spot instances, and the trade of time against money."""
