"""Makes the pods and parameters of one job match its plan, step by step, without a restart.

``ActuatorMachine`` remembers and decides; ``next_steps`` says what is still to be done. The service carries the steps
out against a backend and reports its observations; every observation may come twice, late or never.
"""
