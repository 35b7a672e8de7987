"""What the scheduler is made of, one idea a file."""
