"""``python -m stretto_installation.one_machine OPTIONS``: the supervisor that ``stretto up --detach`` leaves behind."""

from .supervisor import main

main()
