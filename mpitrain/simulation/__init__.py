"""Many ranks in one process, in virtual time: MPI's calls, and the program's own protocols over them."""
