"""`python -m manyhands.cli`."""

from manyhands.cli.main import main

if __name__ == "__main__":
    main()
