"""``python -m raybench`` is the command ``raybench``."""

from raybench.cli import main

if __name__ == "__main__":
    main()
