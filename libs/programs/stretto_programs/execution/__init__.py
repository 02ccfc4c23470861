"""Programs that nobody here wrote, with data workers: processes on this machine that prepare batches of a step.

Home, the program's own process, pulls raw elements in the program's own order, and asks lanes to prepare them. It
trains with the other half of the step. Home itself prepares what no lane answers in time: it holds the raw element.
"""
