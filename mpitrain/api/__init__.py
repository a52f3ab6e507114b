"""Training, as the command line, simulations and programs call it: setting up a run folder, the run, its end."""
