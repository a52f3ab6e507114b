"""Who sends what to whom, when. Transport, clock and members are given; neither mpi4py nor time is imported here."""
