"""`python -m gnomon_cli` is `gnomon`."""

from gnomon_cli.main import main

if __name__ == "__main__":
    main()
