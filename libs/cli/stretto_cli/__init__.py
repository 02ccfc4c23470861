"""The command: stretto up, submit, watch, explain …"""
