"""Who may do what on an installation's bus: keys, rights, certificates, accounts of tools outside."""
