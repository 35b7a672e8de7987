"""`python -m kvstore`: the same as the `kvstore` program."""

from kvstore.cli.main import main

if __name__ == "__main__":
    main()
