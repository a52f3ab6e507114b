"""Use a trained network: evaluate, predict, export."""
