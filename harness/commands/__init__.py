"""What each command of the command line does; all take the parsed arguments and return the exit code."""
