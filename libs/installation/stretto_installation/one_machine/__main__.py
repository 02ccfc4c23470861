"""``python -m stretto_installation.one_machine OPTIONS``: the supervisor that ``stretto up --detach`` leaves behind."""

import sys

from .programs import StartOptions
from .supervisor import main

main(StartOptions.from_argument(sys.argv[1]))
