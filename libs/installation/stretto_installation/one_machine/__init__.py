"""The whole installation on one machine: nats-server, redis-server, the services and the gateway as processes.

One folder holds everything: ``nats/`` (streams, credentials), ``redis/``, ``run/`` (addresses; ``up.json`` lists the
processes), ``logs/``, ``spans/``, ``pods/``, ``checkpoints/``, ``gateway.token``. Every process listens on loopback;
the parameter servers of jobs, which the actuator starts, listen on no port, but on sockets in their pods' folders.

:mod:`.supervisor` brings it up, keeps it alive and takes it down; :mod:`.detached` does so in the background;
:mod:`.programs` has the command lines; :mod:`.state` reads what runs; :mod:`.leftovers` clears away what a killed
supervisor left.
"""
