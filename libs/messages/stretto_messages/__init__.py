"""Every message of Stretto, once. One file per publisher; ``pods`` holds what pods report and answer.

A message is a frozen dataclass of the standard library. Machines take and emit it as it is; ``stretto_wire`` reads and
writes it as JSON and checks the bounds that stand beside each field.
"""
