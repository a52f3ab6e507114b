"""What is counted, evaluated and recorded, and what of it is shown."""
