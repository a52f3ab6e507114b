"""Update rules: elementwise, in place, valid on any slice of the flat vector. No MPI, no files, no clock."""
