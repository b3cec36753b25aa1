"""`python -m manyhands`."""

from manyhands.cli.main import main

if __name__ == "__main__":
    main()
