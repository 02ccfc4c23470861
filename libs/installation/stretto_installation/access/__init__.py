"""Access to an installation's bus: keys, rights, certificates, accounts of tools outside; and to its cache."""
