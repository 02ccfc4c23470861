"""``python -m stretto_forwarder``"""

from stretto_forwarder.service import main

main()
