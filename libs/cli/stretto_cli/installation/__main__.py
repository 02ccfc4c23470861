"""``python -m stretto_cli.installation OPTIONS``: the supervisor that ``stretto up --detach`` leaves behind."""

from .supervisor import main

main()
