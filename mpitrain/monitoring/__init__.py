"""Count, evaluate and record what happens in a training, and display it."""
