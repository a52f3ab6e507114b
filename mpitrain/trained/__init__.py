"""What is done with the result of a training: evaluate, predict, export."""
