"""`python -m firstpage`."""

from firstpage.cli import main

if __name__ == "__main__":
    main()
