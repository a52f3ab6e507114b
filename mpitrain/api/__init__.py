"""What trains, for the command line, for simulations and for programs: setting up a run folder, the run, its end."""
