"""The command line: arguments, completion, and the commands `train`, `launch`, `info`, `describe` and `jobs`."""
