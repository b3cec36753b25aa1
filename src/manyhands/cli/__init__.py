"""The command line: parsing, and what is printed. A command imports what it needs itself."""
