"""What LoLat does for a user that takes several rooms: learn, fit, measure; a module each."""
